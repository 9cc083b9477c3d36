"""Promote and roll back: another release is served, and it is written down.

Owns: what must hold first, the order of server, pointer and history.
May not know: how a server changes its model, what a drill does.
Read next: `sockets.py`, `store.py`, `drill_report.py`.

The server goes first: only what answers becomes current. Then it is written down what is about to
be done, the pointer moves, and it is written down that it did. A process that is killed in between
leaves one whole release current, and the same command again brings it to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firsthand.errors import FirsthandError, ReleaseRefused
from firsthand.release.drill_age import LONGEST_S
from firsthand.release.drill_report import why_not_drilled
from firsthand.release.engines import check_canary, python_of
from firsthand.release.history import BEGUN
from firsthand.release.record import Release, verify_release
from firsthand.release.sockets import AdminSocket
from firsthand.release.store import Store
from firsthand.values import dataclass
from firsthand.version import VERSION
from firsthand.weights.sums import Sums


@dataclass(frozen=True, slots=True)
class Switch:
    """`server` None: none runs, and the next one that is started serves what is current."""

    store: Store
    server: AdminSocket | None
    model: str | None
    sums: Sums
    trusted: Path | None = None  # keys, of which one must have signed the manifest
    drill_counts_s: float = LONGEST_S
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def promote(self, word: str, *, force: bool = False) -> dict[str, Any]:
        """Raises ReleaseRefused without a drill that passed lately, unless by `force`;
        ModelNotFound, BadHash, CheckpointError. Then all is as it was."""
        with self.store.changing():
            release = self.store.find(word)
            why = _why_returned(self.store, release) or self._why_not_drilled(release)
            return self._put("promote", release, _forced(release, why, force=force))

    def canary(self, word: str, share: str, by: str, *, force: bool = False) -> dict[str, Any]:
        """Give it a share of the requests, beside the one that is served. Raises as `promote`, and
        ReleaseRefused without a server, or for one of another engine."""
        with self.store.changing():
            release, current = self.store.find(word), self.store.current()
            if current is not None:
                check_canary(release, self.store.read(current).engine_version)
            facts = _forced(release, self._why_not_drilled(release), force=force)
            folder = self.store.folder(release.number)
            verify_release(folder, release, self.sums, self.trusted)
            told = self._server().canary(folder.resolve(), self.model, share, by)
            facts |= {"share": told["share"], "by": by, "server": told}
            return self.store.history.add("canary", release.number, id=release.id, **facts)

    def end_canary(self) -> dict[str, Any]:
        """It has no share any more. Raises ReleaseRefused."""
        told = self._server().end_canary(self.model)
        facts = {"id": told["id"], "server": told}
        return self.store.history.add("canary_ended", told["release"], **facts)

    def _why_not_drilled(self, release: Release) -> str | None:
        return why_not_drilled(self.store, release, self.drill_counts_s, self.now())

    def _server(self) -> AdminSocket:
        if self.server is None:
            raise ReleaseRefused("a canary is beside a running server: --admin-socket PATH")
        return self.server

    def rollback(self, word: str | None = None) -> dict[str, Any]:
        """To the release that was current before, or to the one that is named. One that was killed
        is only brought to its end."""
        with self.store.changing():
            previous, current = self.store.previous(), self.store.current()
            if self.store.history.begun() == ("rollback", current):
                previous = current
            if word is None and previous is None:
                raise ReleaseRefused("there is no earlier release to return to")
            release = self.store.find(str(previous) if word is None else word)
            return self._put("rollback", release, {})

    def _put(self, event: str, release: Release, facts: dict[str, Any]) -> dict[str, Any]:
        began_s = time.perf_counter()
        before, folder = self.store.current(), self.store.folder(release.number)
        try:
            if release.engine_version != VERSION:
                python_of(self.store.root, release.engine_version)
            verify_release(folder, release, self.sums, self.trusted)
            if self.server is not None:
                facts["server"] = self.server.release(folder.resolve(), self.model)
        except FirsthandError as error:
            self.store.history.add(f"{event}_failed", release.number, error=str(error)[:500])
            raise
        self.store.history.add(f"{event}{BEGUN}", release.number)
        self.store.point(release.number)
        seconds = round(time.perf_counter() - began_s, 3)
        return self.store.history.add(
            event, release.number, id=release.id, before=before, seconds=seconds, **facts
        )


def _forced(release: Release, why: str | None, *, force: bool) -> dict[str, Any]:
    """What the history says of it. Raises ReleaseRefused."""
    if why is None:
        return {}
    if not force:
        remedy = "give it another canary" if "canary" in why else "firsthand release drill"
        raise ReleaseRefused(f"release {release.number}: {why}; {remedy}, or --force")
    return {"forced": why}


def _why_returned(store: Store, release: Release) -> str | None:
    """Why its last canary does not let it be promoted."""
    of_it = [line for line in store.history.lines() if line.get("release") == release.number]
    events = [line for line in of_it if str(line.get("event")).startswith("canary")]
    if not events or events[-1]["event"] != "canary_returned":
        return None
    return f"its canary was taken back: {events[-1].get('why')}"
