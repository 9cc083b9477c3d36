"""The self-checks of all models: each by its model's name, begun again when that is another.

Owns: which check is whose, the tasks that run them.
May not know: what is compared (`selfcheck.py`), what the outcome leads to (`lifecycle.py`).
Read next: `selfcheck.py`, `succession.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

from firsthand.generation.golden_answer import SelfAnswer
from firsthand.generation.member import Member
from firsthand.server.ending import Ends
from firsthand.server.health import Checks
from firsthand.server.selfcheck import SelfCheck
from firsthand.server.settings import Settings
from firsthand.values import dataclass


@dataclass(slots=True)
class SelfChecks:
    """`loaded` is awaited once a model is there, before it is asked anything."""

    clock: Callable[[], float]
    interval_s: float
    loaded: Callable[[Member], Awaitable[None]]
    by_name: dict[str, SelfCheck] = field(default_factory=dict)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def add(self, member: Member) -> None:
        """In the place of the one of its name."""

        def loads() -> int | None:
            return member.num_loads if member.answers else None

        answer = SelfAnswer(member.service)
        found = SelfCheck(None, answer, self.clock, self.interval_s, loads=loads)
        self.by_name[member.name] = found

    def begin(self, member: Member, ready: asyncio.Future[None] | None = None) -> None:
        """Look its golden tokens up, and compare for ever once `ready` is there. An earlier task of
        its name ends."""
        earlier = self._running.pop(member.name, None)
        if earlier is not None:
            earlier.cancel()
        self._running[member.name] = asyncio.ensure_future(self._run(member, ready))

    def succeed(self, member: Member, checks: Checks) -> None:
        """It is another model under the same name."""
        self.add(member)
        checks.add(f"golden_tokens:{member.name}", self.by_name[member.name].check)
        self.begin(member)

    async def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _run(self, member: Member, ready: asyncio.Future[None] | None) -> None:
        selfcheck, options = self.by_name[member.name], member.entry.service
        await selfcheck.look_up(str(options.model), options.load)
        if ready is not None:
            await asyncio.wait((ready,))
        await self.loaded(member)
        await selfcheck.run()


def selfchecks_of(
    members: Sequence[Member], clock: Callable[[], float], settings: Settings, ends: Ends
) -> SelfChecks:
    async def loaded(member: Member) -> None:
        if settings.record_content:
            await ends.know_what_made(member)

    found = SelfChecks(clock, settings.selfcheck_interval, loaded)
    for member in members:
        found.add(member)
    return found
