"""The door of the engines: who may go in now, and what everyone else is told.

Owns: one queue for each model, the order of the reasons for which a request is refused, who is
ended when the machine's memory is at its end.
May not know: HTTP, the engine, text. The clock and the jitter are arguments.
Read next: `queue.py`, `rates.py`; `server/lifecycle.py` closes the door.
Seen in: `firsthand lab unbounded-queue`, `firsthand lab slow-upstream`.

What is refused is refused before anything was computed for it, and whoever got a ticket is never
refused later for lack of room. A flood for one model fills its own queue and no other's: the queues
share the machine's memory, the callers' rates, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from firsthand.request import Priority
from firsthand.server.guard.call import Call
from firsthand.server.guard.queue import Bounds, Place, Queue
from firsthand.server.guard.rates import Rates
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.work import CLASSES, Work, capped
from firsthand.values import dataclass

MEMORY_FULL = 0.95  # of the machine's memory: no new work beyond it
MEMORY_SPENT = 0.98  # what runs is ended, the least urgent first
_MEMORY_STEPS = ((0.92, 0.9), (0.90, 0.5))  # memory in use → pressure, as a queue would give


@dataclass(slots=True)
class Grant:
    """The right to be computed. Close it at the request's end, however it ended.

    `deadline_s` is on the gate's clock: an answer that is not there by then is of no use.
    `end` ends what was submitted, once it was; `spent`: that was done, for want of memory.
    """

    call: Call
    place: Place
    deadline_s: float
    _gate: Gate
    _queue: Queue
    closed: bool = False
    spent: bool = False
    end: Callable[[], object] | None = None

    @property
    def priority(self) -> Priority:
        return self.place.work.priority

    def close(self, num_output_tokens: int = 0) -> None:
        """Free the places; the caller's rate is settled by what was computed."""
        if not self.closed:
            self._queue.ended(self.place, num_output_tokens)
            self._leave(self.place.work.max_output_tokens - num_output_tokens)

    def withdraw(self) -> None:
        """Nothing was submitted after all: as if it had not been admitted."""
        if not self.closed:
            self._leave(self.place.work.num_tokens, num_requests=1)

    def _leave(self, unused_tokens: int, num_requests: int = 0) -> None:
        self.closed, self.end = True, None
        self._gate.release(self, self._queue, unused_tokens, num_requests)


@dataclass(slots=True)
class Gate:
    """`bounds` are those of a model for which none were set. `door` gives the reason for which
    nobody may go in now, or None; `listen` is told a model, its level of degradation at each
    change, and the pressure."""

    bounds: Bounds
    clock: Callable[[], float]
    jitter: Callable[[], float]  # 0 ≤ x < 1
    door: Callable[[], Refused | None] = lambda: None
    listen: Callable[[str, int, float], None] = lambda model, level, pressure: None
    rates: Rates = field(default_factory=Rates)
    memory_used: float = 0.0  # of the machine's, 0 … 1
    memory_short: bool = False  # an engine has given up its reserve
    queues: dict[str, Queue] = field(default_factory=dict)
    num_refused_unnamed: int = 0  # before it was known which model they ask for
    _tickets: dict[int, Grant] = field(default_factory=dict)

    def queue(self, model: str) -> Queue:
        """The queue of a model; there are no more than models."""
        found = self.queues.get(model)
        if found is None:
            found = self.queues[model] = Queue(
                self.bounds, lambda level, pressure: self.listen(model, level, pressure)
            )
        return found

    def set_bounds(self, bounds: Bounds, model: str | None = None) -> None:
        """Of one model, or of all."""
        if model is not None:
            self.queue(model).bounds = bounds
            return
        self.bounds = bounds
        for queue in self.queues.values():
            queue.bounds = bounds

    def check(self, call: Call, model: str | None = None) -> None:
        """What can be told before a body is read, or before a prompt is. Raises Refused. Where the
        model is not known yet, one with room is enough."""
        if model is None and len(self.queues) == 1:
            model = next(iter(self.queues))
        queues = list(self.queues.values()) if model is None else [self.queue(model)]
        call.queue = model
        try:
            self._check_door(queues)
            if queues and not any(one.has_room(1, urgent=True) for one in queues):
                queues[0].check_room(1, self.jitter(), urgent=True)
        except Refused:
            if model is None:
                self.num_refused_unnamed += 1
            else:
                self.queue(model).refuse()
            raise

    def admit(self, call: Call, works: Sequence[Work], model: str = "") -> list[Grant]:
        """All parts of one request, or none of them. Raises Refused: never fits, too many, shed,
        too late, or the caller's own limit."""
        queue, now = self.queue(model), self.tick()
        call.queue = model
        priority = capped(works[0].priority, call.caller.highest_priority)
        works = [replace(queue.sized(work), priority=priority) for work in works]
        try:
            given_s = self._check(call, works, queue, now)
        except Refused:
            queue.refuse()
            raise
        deadline_s = call.arrived_s + given_s
        tickets = []
        for work in works:
            ticket = Grant(call, Place(work, call.caller.tenant), deadline_s, self, queue)
            queue.enter(ticket.place)
            self._tickets[id(ticket)] = ticket
            tickets.append(ticket)
        self.tick()
        return tickets

    def release(
        self, ticket: Grant, queue: Queue, unused_tokens: int, num_requests: int = 0
    ) -> None:
        """For `Grant`."""
        now = self.tick()
        del self._tickets[id(ticket)]
        queue.leave(ticket.place)
        self.rates.give_back(ticket.call.caller, unused_tokens, now, num_requests)
        self.tick()

    def tick(self) -> float:
        """To be called now and then: with nobody coming, steps of the ladder are undone too."""
        now = self.clock()
        pressure = self._memory_pressure()
        for queue in self.queues.values():
            queue.pass_time(now, pressure)
        return now

    def end_one(self) -> str | None:
        """While the machine's memory is spent: end the request that came last of the lowest class,
        so that others use again what it held. Its id; None: there is no need, or only urgent ones
        are left."""
        if self.memory_used < MEMORY_SPENT:
            return None
        found = [one for one in self._tickets.values() if one.end is not None and not one.spent]
        chosen = max(reversed(found), key=lambda one: CLASSES.index(one.priority), default=None)
        if chosen is None or chosen.end is None or chosen.priority is Priority.URGENT:
            return None
        chosen.spent = True
        chosen.end()
        return chosen.call.request_id

    def level(self, model: str | None = None) -> int:
        """Of degradation: of one model, or the highest."""
        if model is not None:
            return self.queue(model).level
        return max((queue.level for queue in self.queues.values()), default=0)

    @property
    def num_open(self) -> int:
        return len(self._tickets)

    @property
    def open_request_ids(self) -> list[str]:
        return [ticket.call.request_id for ticket in self._tickets.values()]

    def _check(self, call: Call, works: Sequence[Work], queue: Queue, now: float) -> float:
        """The time that is given, from the request's arrival. Raises Refused."""
        num_places = sum(work.n for work in works)
        num_tokens = sum(work.num_tokens for work in works)
        chance, first, passed_s = self.jitter(), works[0], now - call.arrived_s
        queue.check_fits(num_places, "n" if len(works) == 1 else "prompt")
        self._check_door([queue])
        queue.check_room(num_places, chance, urgent=first.priority is Priority.URGENT)
        queue.check_share(call.caller.tenant, num_places, chance)
        for work in works:
            queue.check_shed(work, chance)
        queue.check_waiting_tokens(num_tokens, chance)
        given_s = queue.time_given_s(first, passed_s, num_places, chance)
        self.rates.take(call.caller, num_tokens, now, len(works))
        return given_s

    def _check_door(self, queues: Sequence[Queue]) -> None:
        closed = self.door()
        if closed is not None:
            raise closed
        if self.memory_used >= MEMORY_FULL:
            message = "the machine's memory is full; requests that run are being finished"
            after_s = max((one.retry_after_s(self.jitter()) for one in queues), default=1.0)
            raise Refused(503, message, "degraded", retry_after_s=after_s)

    def _memory_pressure(self) -> float:
        found = [_MEMORY_STEPS[0][1]] if self.memory_short else [0.0]
        found += [as_queue for used, as_queue in _MEMORY_STEPS if self.memory_used >= used]
        return max(found)
