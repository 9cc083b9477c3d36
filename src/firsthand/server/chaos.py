"""Faults in a running server, on purpose: for a drill, and to prove the handbook.

Owns: which faults there are, and those of the server's own process.
May not know: the faults of an engine (`generation/faults.py`), who asks (`verbs.py`).
Read next: `../generation/disturbance.py`; `../cli/chaos.py`, which is also the slow client and the
flood.

Only a server that was started with `--chaos` has any, and only its owner, who has the admin socket,
can ask for one. Each ends by itself, and with the process; at once when it is asked for with a
time of 0.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import field
from typing import Any

from firsthand.checks import check_choice
from firsthand.errors import InvalidRequest
from firsthand.generation.faults import IN_ENGINE, UPSTREAM, FaultKind
from firsthand.generation.member import Member
from firsthand.server.logs import tell
from firsthand.values import dataclass

if sys.platform == "linux":
    import resource

REPLY_S = 0.2  # in which the answer to the verb has gone out
LOOK_S = 0.02

IN_SERVER = (
    FaultKind("kill", "the engine is killed; with a time, each one that follows too", seconds=0),
    FaultKind("hang", "the server's process does nothing", seconds=10),
    FaultKind("disk", "no file of the server can grow, as on a full disk"),
)
# What `firsthand chaos` does itself, as a client: here it is only allowed, and noted.
IN_CLIENT = (
    FaultKind("client", "clients ask for long answers and read nothing", "num", 4, 1, 1000),
    FaultKind("flood", "so many clients ask without a pause", "num", 64, 1, 1000, seconds=20),
)
FAULTS = {kind.name: kind for kind in (*IN_ENGINE, UPSTREAM, *IN_SERVER, *IN_CLIENT)}


@dataclass(slots=True)
class Chaos:
    """`begin` is the verb."""

    allowed: bool
    _tasks: dict[str, list[asyncio.Task[None]]] = field(default_factory=dict)

    async def begin(
        self,
        members: Sequence[Member],
        name: str,
        seconds: str | None,
        amount: str | None,
        unit: str | None,
    ) -> dict[str, Any]:
        """The fault as it is in effect. Raises InvalidRequest, EngineUnavailable."""
        if not self.allowed:
            raise InvalidRequest("chaos", "this server was started without --chaos")
        check_choice("fault", name, list(FAULTS))
        kind = FAULTS[name]
        if unit is not None and unit != kind.unit:
            raise InvalidRequest(unit, f"{name} has {kind.unit or 'no amount'}")
        lasts_s, much = kind.checked(
            _number("seconds", seconds), _number(kind.unit or "amount", amount)
        )
        if kind in (*IN_ENGINE, UPSTREAM):
            for member in members:
                await member.service.disturb(name, lasts_s, much)
        else:
            await self._end(name)
            self._begin_here(members, name, lasts_s)
        facts = {"fault": name, "seconds": lasts_s, kind.unit or "amount": much}
        text = f"a fault on purpose: {kind.about}, for {lasts_s:g} s"
        tell("chaos", text, logging.WARNING, **facts)
        return {**facts, "about": kind.about, "models": [member.name for member in members]}

    def _begin_here(self, members: Sequence[Member], name: str, lasts_s: float) -> None:
        if name == "kill":
            for member in members:
                self._run(name, _kill(member, lasts_s))
        elif name == "hang":
            asyncio.get_running_loop().call_later(REPLY_S, time.sleep, lasts_s)
        elif name == "disk":
            pids = [member.service.state.pid for member in members]
            self._run(name, _fill_disk([os.getpid(), *filter(None, pids)], lasts_s))

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.setdefault(name, []).append(asyncio.ensure_future(work))

    async def _end(self, name: str) -> None:
        """Whatever there is of an earlier one takes back what it did."""
        tasks = self._tasks.pop(name, [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _number(field_name: str, given: str | None) -> float | None:
    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        raise InvalidRequest(field_name, f"must be a number, not {given[:40]!r}") from None


async def _kill(member: Member, lasts_s: float) -> None:
    """The engine that is there; for so long, also each that follows."""
    until_s, killed = time.perf_counter() + lasts_s, None
    while True:
        pid = member.service.state.pid
        if pid is not None and pid != killed:
            os.kill(pid, signal.SIGKILL)
            killed = pid
        if time.perf_counter() >= until_s:
            return
        await asyncio.sleep(LOOK_S)


async def _fill_disk(pids: Sequence[int], lasts_s: float) -> None:
    """Whoever else writes to the disk is spared: it is these processes' files that cannot grow."""
    if sys.platform != "linux":
        raise InvalidRequest("fault", "disk needs Linux")
    kind = resource.RLIMIT_FSIZE
    before = {pid: resource.prlimit(pid, kind) for pid in pids}
    try:
        for pid, (_, hard) in before.items():
            resource.prlimit(pid, kind, (0, hard))
        await asyncio.sleep(lasts_s)
    finally:
        for pid, limits in before.items():
            try:
                resource.prlimit(pid, kind, limits)
            except ProcessLookupError:  # it has ended meanwhile
                continue
