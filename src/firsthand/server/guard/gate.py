"""The door of the engine: who may go in now, and what everyone else is told.

Owns: the bounded queue, its bounds, the order of the reasons for which a request is refused.
May not know: HTTP, the engine, text. The clock and the jitter are arguments.
Read next: `drain_rate.py`, `shedding.py`, `rates.py`; `server/lifecycle.py` closes the door.

A place is one sequence. The first `max_running` places run, the others wait: the engine has its
own queue, but it is this bound that keeps it short. What is refused is refused before anything was
computed for it, and whoever got a ticket is never refused later for lack of room. The last eighth
of the places to wait in is for urgent requests: a flood of others does not keep them out, and they
do not wait behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from firsthand.request import Priority
from firsthand.server.guard.call import Call
from firsthand.server.guard.drain_rate import DrainRate
from firsthand.server.guard.rates import Rates
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.shedding import Ladder, shed_field
from firsthand.server.guard.work import Work, capped

JITTER = 0.2  # so that those refused together do not come back together
LONGEST_RETRY_S = 60.0
UNMEASURED_RETRY_S = 1.0
URGENT_SHARE = 8  # one of so many places to wait in is kept for urgent requests
MEMORY_FULL = 0.95  # of the machine's memory: no new work beyond it
_MEMORY_STEPS = ((0.92, 0.9), (0.90, 0.5))  # memory in use → pressure, as a queue would give


@dataclass(frozen=True, slots=True)
class Bounds:
    """0 of `max_waiting_tokens` and of `max_wait_s`: no bound of that kind."""

    max_running: int = 16
    max_waiting: int = 256
    max_waiting_tokens: int = 0
    max_wait_s: float = 30.0
    request_timeout_s: float = 600.0
    long_output_tokens: int = 1024
    shed: bool = True

    @property
    def num_places(self) -> int:
        return self.max_running + self.max_waiting

    @property
    def max_ordinary(self) -> int:
        """Places to wait in for those that are not urgent."""
        return self.max_waiting - self.max_waiting // URGENT_SHARE


@dataclass(slots=True)
class Ticket:
    """The right to be computed. Close it at the request's end, however it ended.

    `deadline_s` is on the gate's clock: an answer that is not there by then is of no use.
    """

    call: Call
    work: Work
    priority: Priority
    deadline_s: float
    _gate: Gate
    closed: bool = False

    def close(self, num_output_tokens: int = 0) -> None:
        """Free the places; tokens that were not computed go back to the caller's rate."""
        if not self.closed:
            self.closed = True
            self._gate.release(self, num_output_tokens)

    def withdraw(self) -> None:
        """Nothing was submitted after all: as if it had not been admitted."""
        if not self.closed:
            self.closed = True
            self._gate.withdraw(self)


@dataclass(slots=True)
class Gate:
    """`door` gives the reason for which nobody may go in now, or None; `listen` is told the level
    of degradation at each change."""

    bounds: Bounds
    clock: Callable[[], float]
    jitter: Callable[[], float]  # 0 ≤ x < 1
    door: Callable[[], Refused | None] = lambda: None
    listen: Callable[[int, float], None] = lambda level, pressure: None
    rates: Rates = field(default_factory=Rates)
    memory_used: float = 0.0  # of the machine's, 0 … 1
    memory_short: bool = False  # an engine has given up its reserve
    _drain: DrainRate = field(default_factory=DrainRate)
    _ladder: Ladder = field(default_factory=Ladder)
    _open: dict[int, Ticket] = field(default_factory=dict)  # in the order of their arrival
    _num_places: int = 0
    num_admitted: int = 0
    num_refused: int = 0

    def check(self, call: Call) -> None:
        """What can be told before a body is read. Raises Refused."""
        try:
            self._check_door(call, 1, urgent=True)  # nothing is known of it yet
        except Refused:
            self.num_refused += 1
            raise

    def admit(self, call: Call, works: Sequence[Work]) -> list[Ticket]:
        """All parts of one request, or none of them. Raises Refused: never fits, too many, shed,
        too late, or the caller's own limit."""
        now = self._tick()
        priority = capped(works[0].priority, call.caller.highest_priority)
        num_places = sum(work.n for work in works)
        num_tokens = sum(work.num_tokens for work in works)
        try:
            self._check_fits(num_places, "n" if len(works) == 1 else "prompt")
            self._check_door(call, num_places, urgent=priority is Priority.URGENT)
            for work in works:
                self._check_shed(work, priority)
            self._check_waiting_tokens(num_tokens)
            deadline_s = self._deadline_s(call, works[0].timeout_s, num_places, priority, now)
            self.rates.take(call.caller, num_tokens, now, len(works))
        except Refused:
            self.num_refused += 1
            raise
        tickets = [Ticket(call, work, priority, deadline_s, self) for work in works]
        self._open |= {id(ticket): ticket for ticket in tickets}
        self._num_places += num_places
        self.num_admitted += len(tickets)
        self._tick()
        return tickets

    def release(self, ticket: Ticket, num_output_tokens: int) -> None:
        """For `Ticket.close`."""
        self._drain.note(ticket.work.n)
        self._leave(ticket, max(0, ticket.work.max_output_tokens - num_output_tokens))

    def withdraw(self, ticket: Ticket) -> None:
        """For `Ticket.withdraw`."""
        self._leave(ticket, ticket.work.num_tokens)

    def _leave(self, ticket: Ticket, unused_tokens: int) -> None:
        now = self._tick()
        del self._open[id(ticket)]
        self._num_places -= ticket.work.n
        self.rates.give_back(ticket.call.caller, unused_tokens, now)
        self._tick()

    def tick(self) -> None:
        """To be called now and then: with nobody coming, steps of the ladder are undone too."""
        self._tick()

    @property
    def level(self) -> int:
        """Of degradation: 0 serves everything, 4 only the core."""
        return self._ladder.level if self.bounds.shed else 0

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_waiting(self) -> int:
        return max(0, self._num_places - self.bounds.max_running)

    @property
    def num_waiting_tokens(self) -> int:
        """Of those that came after the first `max_running` places."""
        tickets = list(self._open.values())
        places = accumulate(ticket.work.n for ticket in tickets)
        return sum(
            ticket.work.num_tokens
            for ticket, taken in zip(tickets, places, strict=True)
            if taken > self.bounds.max_running
        )

    @property
    def open_request_ids(self) -> list[str]:
        return [ticket.call.request_id for ticket in self._open.values()]

    @property
    def ended_per_s(self) -> float | None:
        return self._drain.per_second

    def expected_wait_s(self, num_more: int = 1, priority: Priority = Priority.NORMAL) -> float:
        """Of `num_more` places, were they asked for now; 0 where nothing has been measured. Before
        an urgent one go other urgent ones, and as many as run."""
        places = self._num_places
        if priority is Priority.URGENT:
            others = sum(one.work.n for one in self._open.values() if one.priority is not priority)
            places -= max(0, others - self.bounds.max_running)
        ahead = places + num_more - self.bounds.max_running
        rate = self._drain.per_second
        return 0.0 if ahead <= 0 or rate is None else ahead / rate

    def retry_after_s(self) -> float:
        """Until those that wait now will have started, at the rate at which requests end."""
        rate = self._drain.per_second
        wait_s = UNMEASURED_RETRY_S if rate is None else max(1, self.num_waiting) / rate
        shaken = wait_s * (1 - JITTER + 2 * JITTER * self.jitter())
        return min(max(shaken, 1.0), LONGEST_RETRY_S)

    def _check_fits(self, num_places: int, field: str) -> None:
        most = self.bounds.max_running + self.bounds.max_ordinary
        if num_places > most:
            message = f"{num_places} answers at once; at most {most}"
            raise Refused(400, message, "invalid_value", field)

    def _check_door(self, call: Call, num_places: int, *, urgent: bool) -> None:
        closed = self.door()
        if closed is not None:
            raise closed
        if self.memory_used >= MEMORY_FULL:
            message = "the machine's memory is full; requests that run are being finished"
            raise Refused(503, message, "degraded", retry_after_s=self.retry_after_s())
        bounds = self.bounds
        most = bounds.num_places if urgent else bounds.max_running + bounds.max_ordinary
        if self._num_places + num_places > most:
            raise self._full(f"the queue is full: {self.num_waiting} requests are waiting")

    def _check_shed(self, work: Work, priority: Priority) -> None:
        asked = replace(work, priority=priority)
        found = shed_field(asked, self.level, self.bounds.long_output_tokens)
        if found is not None:
            message = "the server is under load and refuses optional work for a while"
            raise Refused(503, message, "degraded", found, self.retry_after_s())

    def _check_waiting_tokens(self, num_tokens: int) -> None:
        bound = self.bounds.max_waiting_tokens
        if bound and self.num_waiting and self.num_waiting_tokens + num_tokens > bound:
            raise self._full(f"the queue is full: {self.num_waiting_tokens} tokens are waiting")

    def _deadline_s(
        self, call: Call, timeout_s: float | None, num_places: int, priority: Priority, now: float
    ) -> float:
        wait_s = self.expected_wait_s(num_places, priority)
        given_s = self.bounds.request_timeout_s
        if timeout_s is not None:
            given_s = min(given_s, timeout_s)
            if call.arrived_s + given_s <= now + wait_s:
                message = f"{given_s * 1e3:.0f} ms cannot be met: the queue takes {wait_s:.1f} s"
                field, after_s = "X-Request-Deadline-Ms", self.retry_after_s()
                raise Refused(408, message, "deadline_exceeded", field, after_s)
        if self.bounds.max_wait_s and wait_s > self.bounds.max_wait_s:
            raise self._full(f"the queue is too long: {wait_s:.0f} s")
        return call.arrived_s + given_s

    def _full(self, message: str) -> Refused:
        return Refused(503, message, "queue_full", retry_after_s=self.retry_after_s())

    def _tick(self) -> float:
        now = self.clock()
        self._drain.pass_time(now, busy=self._num_places > 0)
        before = self._ladder.level
        pressure = self._pressure()
        if self._ladder.update(pressure, now) != before:
            self.listen(self._ladder.level, pressure)
        return now

    def _pressure(self) -> float:
        """0 idle … 1 full: of places, of tokens, or of memory, whichever is closest to its end."""
        bounds = self.bounds
        found = [self.num_waiting / bounds.max_ordinary if bounds.max_waiting else 0.0]
        if bounds.max_waiting_tokens:
            found.append(self.num_waiting_tokens / bounds.max_waiting_tokens)
        found += [_MEMORY_STEPS[0][1]] if self.memory_short else []
        found += [as_queue for used, as_queue in _MEMORY_STEPS if self.memory_used >= used]
        return max(found)
