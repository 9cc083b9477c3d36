"""Promote and roll back: another release is served, and it is written down.

Owns: what must hold first, the order of server, pointer and history.
May not know: how a server changes its model, what a drill does.
Read next: `sockets.py`, `store.py`, `drill_report.py`.

The server goes first: only what answers becomes current. A process that is killed in between leaves
one whole release current, and the same command again makes both equal.
"""

from __future__ import annotations

import time
from typing import Any

from firsthand.errors import FirsthandError, ReleaseRefused
from firsthand.release.drill_report import why_not_drilled
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

    def promote(self, word: str, *, force: bool = False) -> dict[str, Any]:
        """Raises ReleaseRefused without a drill that passed, unless by `force`; ModelNotFound,
        BadHash, CheckpointError. Then all is as it was."""
        with self.store.changing():
            release = self.store.find(word)
            why = why_not_drilled(self.store, release)
            if why is not None and not force:
                message = f"release {release.number}: {why}; firsthand release drill, or --force"
                raise ReleaseRefused(message)
            return self._put("promote", release, {} if why is None else {"forced": why})

    def rollback(self, word: str | None = None) -> dict[str, Any]:
        """To the release that was current before, or to the one that is named."""
        with self.store.changing():
            previous = self.store.previous()
            if word is None and previous is None:
                raise ReleaseRefused("there is no earlier release to return to")
            release = self.store.find(str(previous) if word is None else word)
            return self._put("rollback", release, {})

    def _put(self, event: str, release: Release, facts: dict[str, Any]) -> dict[str, Any]:
        began_s = time.perf_counter()
        before, folder = self.store.current(), self.store.folder(release.number)
        try:
            if release.engine_version != VERSION:
                message = (
                    f"release {release.number} is of engine {release.engine_version}, and this is"
                )
                raise ReleaseRefused(
                    f"{message} {VERSION}: serve it from its own environment; a socket is not "
                    "handed over between engines"
                )
            verify_release(folder, release, self.sums)
            if self.server is not None:
                facts["server"] = self.server.release(folder.resolve(), self.model)
        except FirsthandError as error:
            self.store.history.add(f"{event}_failed", release.number, error=str(error)[:500])
            raise
        self.store.point(release.number)
        seconds = round(time.perf_counter() - began_s, 3)
        return self.store.history.add(
            event, release.number, id=release.id, before=before, seconds=seconds, **facts
        )
