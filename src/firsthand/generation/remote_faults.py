"""Faults on the service's side: asked of an engine's process, or of the way to it.

Owns: the question and its answer, and what is sent late.
May not know: what a fault does (`disturbance.py`), streams, how a process is watched.
Read next: `remote.py`, which sends by this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import field

from firsthand.errors import EngineUnavailable
from firsthand.generation.faults import UPSTREAM
from firsthand.generation.frames import Abort, Disturb, Fault, Submit, from_fault
from firsthand.generation.process import EngineProcess
from firsthand.values import dataclass

ANSWER_S = 10.0
FIRST_S = 0.8


@dataclass(slots=True)
class Delay:
    """A way that grows slow, as an upstream's: from `FIRST_S` (or less) to `most_s` over the first
    half of its time."""

    _began_s: float = 0.0
    _ends_s: float = 0.0
    _most_s: float = 0.0
    _arrives_s: float = 0.0

    def begin(self, now_s: float, seconds: float, most_s: float) -> None:
        self._began_s, self._ends_s, self._most_s = now_s, now_s + seconds, most_s

    def of(self, now_s: float) -> float:
        """For something that is sent now; nothing overtakes what was sent before it."""
        if now_s < self._ends_s:
            grown = min(1.0, 2 * (now_s - self._began_s) / (self._ends_s - self._began_s))
            first_s = min(FIRST_S, self._most_s)
            due_s = now_s + first_s + grown * (self._most_s - first_s)
            self._arrives_s = max(self._arrives_s, due_s)
        return max(0.0, self._arrives_s - now_s)


@dataclass(slots=True)
class RemoteFaults:
    """Of one engine after another."""

    clock: Callable[[], float]
    delay: Delay = field(default_factory=Delay)
    _asked: asyncio.Future[Fault | None] | None = None

    def send(self, process: EngineProcess, message: Submit | Abort) -> None:
        late_s = self.delay.of(self.clock())
        if late_s > 0:
            asyncio.get_running_loop().call_later(late_s, process.send, message)
        else:
            process.send(message)

    async def begin(self, process: EngineProcess, wanted: Disturb) -> None:
        """Until the engine has the fault. Raises what it raised, EngineUnavailable."""
        if wanted.name == UPSTREAM.name:
            self.delay.begin(self.clock(), wanted.seconds, wanted.amount / 1e3)
            return
        self._asked = asyncio.get_running_loop().create_future()
        process.send(wanted)
        try:
            async with asyncio.timeout(ANSWER_S):
                refusal = await self._asked
        except TimeoutError:
            raise EngineUnavailable("the engine did not say whether it has the fault") from None
        if refusal is not None:
            raise from_fault(refusal)

    def answered(self, refusal: Fault | None) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(refusal)
