"""From loading to the last answer: whether the door is open, and how it closes.

Owns: the phases, what is told to those who come too early or too late, the drain and its limit.
May not know: signals and sockets (`running.py`), how an engine is watched (`generation`).
Read next: `guard/gate.py`, whose door this is; `running.py`.
Seen in: `firsthand lab drain`.

    loading → ready ⇄ asleep, restarting → draining → ended

Alive is the process that answers: also while it loads, drains, or has more to do than it can. It is
not when no engine of it can be brought back from within: then it asks to be replaced. Ready is what
new work may be sent to. A drain takes nothing new, lets what runs end, and at its limit cuts the
rest, by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from firsthand.generation.service_values import ServiceState
from firsthand.server.guard.gate import MEMORY_FULL, Gate
from firsthand.server.guard.refusal import Refused, draining
from firsthand.server.health import Check, Checks
from firsthand.server.logs import tell
from firsthand.server.selfcheck import SelfCheck
from firsthand.values import dataclass

LOADING_RETRY_S = 2.0
LONGEST_LOADING_RETRY_S = 30.0
STALLED_S = 8.0  # after which it is told that nothing is computed
_POLL_S = 0.02


@dataclass(slots=True)
class Lifecycle:
    """`states` gives the state of each engine; one that takes requests is enough for the door, the
    others are refused by their name. So is one that a request would wake: `wakes`.
    `drain_limit_s` is read when a drain begins."""

    gate: Gate
    clock: Callable[[], float]
    states: Callable[[], Sequence[ServiceState]]
    drain_limit_s: Callable[[], float]
    selfchecks: Mapping[str, SelfCheck] = field(default_factory=dict)  # by the models' names
    wakes: Callable[[], bool] = lambda: False
    num_connections: Callable[[], int] = lambda: 0
    started_s: float = 0.0
    draining_since_s: float | None = None
    patience_ended: bool = False
    handed_over: bool = False  # another listens; who is connected here is answered to the end
    cut_ids: list[str] = field(default_factory=list)  # in the order in which they were told

    @property
    def draining(self) -> bool:
        return self.draining_since_s is not None

    def door(self) -> Refused | None:
        """For the gate: why nobody may go in."""
        if self.draining and not self.handed_over:
            return draining()
        states = self.states()
        if not any(state.status.takes_requests for state in states) and not self.wakes():
            return Refused(503, _why_not(states), "loading", retry_after_s=loading_s(states))
        if self.selfchecks and all(one.failed for one in self.selfchecks.values()):
            message = "the engine's self-check failed; no answers are given until it is right"
            return Refused(503, message, "degraded", retry_after_s=LOADING_RETRY_S)
        return None

    def add_to(self, checks: Checks) -> None:
        """Our part of readiness; the engines' own checks stand beside it."""
        checks.add("process", lambda: Check(True, "answers"), live=True)
        checks.add("engines", self._check_engines, live=True)
        checks.add("not_draining", self._check_draining)
        checks.add("queue", self._check_queue)
        checks.add("memory", self._check_memory)
        checks.add("models", self._check_models)
        checks.add("progress", self._check_progress)
        for name, selfcheck in self.selfchecks.items():
            checks.add(f"golden_tokens:{name}", selfcheck.check)

    def begin_drain(self, why: str) -> None:
        """From now on nothing new is taken. Again changes nothing."""
        if self.draining_since_s is None:
            self.draining_since_s = self.clock()
            limit_s, num_open = self.drain_limit_s(), self.gate.num_open
            text = f"draining: {num_open} requests run, {limit_s:g} s at most; again: at once"
            tell("drain", text, why=why, num_open=num_open, limit_s=limit_s)

    async def drained(self) -> None:
        """Until all that runs has ended, or the limit of the drain, when `cut_ids` are cut."""
        assert self.draining_since_s is not None, "a drain has begun"
        end_s = self.draining_since_s + self.drain_limit_s()
        while self._busy() and self.clock() < end_s and not self.patience_ended:
            await asyncio.sleep(_POLL_S)
        self._tell_cut("the drain's limit has come")

    def _busy(self) -> bool:
        return self.gate.num_open > 0 or (self.handed_over and self.num_connections() > 0)

    def end_patience(self) -> None:
        """The drain has an end now; what still runs is cut."""
        if not self.patience_ended:
            self.patience_ended = True
            self._tell_cut("a second signal came")

    def _tell_cut(self, why: str) -> None:
        for request_id in self.gate.open_request_ids:
            if request_id in self.cut_ids:
                continue
            self.cut_ids.append(request_id)
            text = f"{why}; this request is cut"
            tell("request_cut", text, logging.WARNING, request_id=request_id)

    def _check_draining(self) -> Check:
        if self.draining_since_s is None or self.handed_over:
            return Check(True, "takes requests")
        age_s = self.clock() - self.draining_since_s
        return Check(False, f"draining, {self.gate.num_open} requests left", age_s)

    def _check_models(self) -> Check:
        states = self.states()
        num_awake = sum(state.status.takes_requests for state in states)
        return Check(num_awake > 0 or self.wakes(), f"{num_awake} of {len(states)} are loaded")

    def _check_engines(self) -> Check:
        """One that is left is enough: a new process would cost its requests."""
        lost = [state.is_lost for state in self.states()]
        return Check(not lost or not all(lost), f"{sum(lost)} of {len(lost)} died at every start")

    def _check_progress(self) -> Check:
        stalled_s = max((state.stalled_s for state in self.states()), default=0.0)
        if stalled_s < STALLED_S:
            return Check(True, "what is asked is computed")
        return Check(False, f"requests are open, and no step was made for {stalled_s:.0f} s")

    def _check_queue(self) -> Check:
        """One that has room is enough."""
        queues = self.gate.queues
        full = [0 < one.bounds.max_ordinary <= one.num_waiting for one in queues.values()]
        waiting = ", ".join(
            f"{one.num_waiting} of {one.bounds.max_waiting} wait" for one in queues.values()
        )
        return Check(not full or not all(full), waiting)

    def _check_memory(self) -> Check:
        used = self.gate.memory_used
        return Check(used < MEMORY_FULL, f"{used:.0%} of the machine's is in use")


def loading_s(states: Sequence[ServiceState]) -> float:
    """When to come back: by the progress of the load, where it tells one."""
    guesses = [
        state.age_s * (1 - state.progress) / state.progress
        for state in states
        if state.progress is not None and state.progress > 0
    ]
    return min([*guesses, LONGEST_LOADING_RETRY_S]) if guesses else LOADING_RETRY_S


def _why_not(states: Sequence[ServiceState]) -> str:
    statuses = sorted({state.status.value for state in states})
    return f"no engine takes requests now: {', '.join(statuses)}"
