"""What an operator changes in a running server: a release, a canary, a model's adapters.

Owns: when it may be done, and what else of the server follows from it.
May not know: how one engine takes another's place (`succession.py`, `handover.py`).
Read next: `verbs.py`, by which it is asked for.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from firsthand.errors import InvalidRequest
from firsthand.generation.member import Member
from firsthand.release.engines import check_canary, store_of
from firsthand.release.record import read_release
from firsthand.release.store import Store
from firsthand.server.canary import Canary
from firsthand.server.running import Serving
from firsthand.values import dataclass
from firsthand.version import VERSION


@dataclass(frozen=True, slots=True)
class Changes:
    """Each raises FirsthandError; then all is as it was."""

    running: Serving

    async def replace(self, member: Member, folder: Path) -> dict[str, Any]:
        """A release in the place of a model."""
        running = self.running
        self._refuse_draining(member)
        release = await asyncio.to_thread(read_release, folder)
        async with running.succession.alone():
            if release.engine_version != VERSION and running.handover is not None:
                at = running.registry.members.index(member)
                return await running.handover.to(release, folder, at)
            if member.name in running.canaries.by_model:
                running.canaries.take_back(member.name)
            done = await running.succession.replace(member.name, folder, release)
        running.set_bounds()
        return done

    async def share(self, member: Member, folder: Path, share: float, by: str) -> dict[str, Any]:
        """A release beside a model, for a share of its requests."""
        running = self.running
        self._refuse_draining(member)
        self._refuse_canary(member)
        release = await asyncio.to_thread(read_release, folder)
        check_canary(release, VERSION)
        store = Store(store_of(folder))
        async with running.succession.alone():
            old, new = await running.succession.canary(member.name, folder, release)
        canary = Canary(old, new, release, share, by, store)
        running.canaries.begin(canary)
        running.set_bounds()
        return canary.told()

    async def adapt(self, member: Member, name: str, folder: Path | None) -> dict[str, Any]:
        """A model with one adapter more, or another under its name; with None, without it."""
        running = self.running
        self._refuse_draining(member)
        self._refuse_canary(member)
        adapters = dict(member.entry.service.load.lora or {})
        if folder is None:
            if name not in adapters:
                raise InvalidRequest("name", f"{member.name} has no adapter {name!r}")
            del adapters[name]
        else:
            if name not in adapters and name in running.succession.services:
                raise InvalidRequest("name", f"something else is called {name!r}")
            adapters[name] = str(folder)
        async with running.succession.alone():
            done = await running.succession.adapt(member.name, adapters)
        running.set_bounds()
        return done

    def _refuse_draining(self, member: Member) -> None:
        if self.running.lifecycle.draining:
            raise InvalidRequest("model", f"{member.name}: the server is draining")

    def _refuse_canary(self, member: Member) -> None:
        if member.name in self.running.canaries.by_model:
            raise InvalidRequest("model", f"{member.name} has a canary already: end it first")
