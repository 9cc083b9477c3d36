"""The queue of one model: how many run and wait, what is given up under load, how long it takes.

Owns: its bounds, the places that are taken, the pace at which they become free, its ladder.
May not know: HTTP, the engine, other models, the caller's rates. Time and chance are arguments.
Read next: `drain_rate.py`, `shedding.py`; `gate.py`, which has one for each model.

A place is one sequence. The first `max_running` places run, the others wait: the engine has its
own queue, but it is this bound that keeps it short. The last eighth of the places to wait in is
for urgent requests: a flood of others does not keep them out, and they do not wait behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import field
from itertools import accumulate

from firsthand.request import Priority
from firsthand.server.guard.drain_rate import DrainRate, Fading
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.shedding import Ladder, shed_field
from firsthand.server.guard.work import CLASSES, Work
from firsthand.values import dataclass

JITTER = 0.2  # so that those refused together do not come back together
LONGEST_RETRY_S = 60.0
UNMEASURED_RETRY_S = 1.0
REMEMBERED_S = 5.0  # how long a refusal counts among those who will come back
URGENT_SHARE = 8  # one of so many places to wait in is kept for urgent requests
FIRST_ANSWER_TOKENS = 256.0  # of an answer without a limit, before any has been seen
ANSWERS_REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """0 of `max_waiting_tokens` and of `max_wait_s`: no bound of that kind. `shared`: callers are
    told apart by their keys, and none may take all places."""

    max_running: int = 16
    max_waiting: int = 256
    max_waiting_tokens: int = 0
    max_wait_s: float = 30.0
    request_timeout_s: float = 600.0
    long_output_tokens: int = 1024
    shed: bool = True
    shared: bool = False

    @property
    def num_places(self) -> int:
        return self.max_running + self.max_waiting

    @property
    def max_ordinary(self) -> int:
        """Places to wait in for those that are not urgent."""
        return self.max_waiting - self.max_waiting // URGENT_SHARE


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """What is in the queue, for one request."""

    work: Work  # with its class as the caller may have it
    tenant: str


@dataclass(slots=True)
class Queue:
    """`listen` is told the level of degradation at each change, and the pressure."""

    bounds: Bounds
    listen: Callable[[int, float], None] = lambda level, pressure: None
    num_admitted: int = 0
    num_refused: int = 0
    _drain: DrainRate = field(default_factory=DrainRate)
    _refused: Fading = field(default_factory=lambda: Fading(REMEMBERED_S))
    _ladder: Ladder = field(default_factory=Ladder)
    _open: dict[Place, None] = field(default_factory=dict)  # in the order of their arrival
    _held: Counter[str] = field(default_factory=Counter)  # places by tenant
    _num_places: int = 0
    _answer_tokens: float = FIRST_ANSWER_TOKENS

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
        places = accumulate(place.work.n for place in self._open)
        return sum(
            place.work.num_tokens
            for place, taken in zip(self._open, places, strict=True)
            if taken > self.bounds.max_running
        )

    @property
    def ended_per_s(self) -> float | None:
        return self._drain.per_second

    def sized(self, work: Work) -> Work:
        """An answer without a limit counts as what such answers were lately, not as the whole
        context, which hardly any of them fills."""
        if not work.open_ended:
            return work
        return work.with_max_tokens(min(work.max_tokens, round(self._answer_tokens) or 1))

    def expected_wait_s(self, num_more: int = 1, priority: Priority = Priority.NORMAL) -> float:
        """Of `num_more` places, were they asked for now; 0 where nothing has been measured. Also 0
        where nobody is ahead: what was measured may be of long ago, and if it refused all, nothing
        would be measured again. Ahead go those of its class and of higher ones, and as many as run.
        """
        places = self._num_places
        if not places:
            return 0.0
        own = CLASSES.index(priority)
        lower = sum(
            place.work.n for place in self._open if CLASSES.index(place.work.priority) > own
        )
        places -= max(0, lower - self.bounds.max_running)
        ahead = places + num_more - self.bounds.max_running
        rate = self._drain.per_second
        return 0.0 if ahead <= 0 or rate is None else ahead / rate

    def retry_after_s(self, chance: float) -> float:
        """Until those that wait now will have started, and those that were refused just before: so
        they come back as fast as they can be served, not all at once."""
        rate, num_refused = self._drain.per_second, self._refused.count
        if rate is None:
            wait_s = UNMEASURED_RETRY_S * (1 + num_refused / max(1, self.bounds.num_places))
        else:
            wait_s = (max(1, self.num_waiting) + num_refused) / rate
        shaken = wait_s * (1 - JITTER + 2 * JITTER * chance)
        return min(max(shaken, 1.0), LONGEST_RETRY_S * (1 - JITTER * chance))

    @property
    def most_at_once(self) -> int:
        """Places that one request may have."""
        return self.bounds.max_running + self.bounds.max_ordinary

    def check_fits(self, num_places: int, field_name: str) -> None:
        if num_places > self.most_at_once:
            message = (
                f"{num_places} answers at once; at most {self.most_at_once}, by --max-num-seqs and "
                "--max-num-queued-reqs"
            )
            raise Refused(400, message, "invalid_value", field_name)

    def has_room(self, num_places: int, *, urgent: bool) -> bool:
        bounds = self.bounds
        most = bounds.num_places if urgent else self.most_at_once
        return self._num_places + num_places <= most

    def check_room(self, num_places: int, chance: float, *, urgent: bool) -> None:
        if not self.has_room(num_places, urgent=urgent):
            message = f"the queue is full: {self.num_waiting} requests are waiting"
            raise self._full(message, chance)

    def check_share(self, tenant: str, num_places: int, chance: float) -> None:
        """Of those who have something open each may hold an equal part, and one more part is kept
        for whoever comes next."""
        if not self.bounds.shared:
            return
        num_shares = len(self._held.keys() | {tenant}) + 1
        most = max(1, (self.bounds.max_running + self.bounds.max_ordinary) // num_shares)
        if self._held[tenant] and self._held[tenant] + num_places > most:
            message = f"this key has {self._held[tenant]} places, its share is {most} now"
            after_s = self.retry_after_s(chance)
            raise Refused(429, message, "queue_share_exceeded", retry_after_s=after_s)

    def check_shed(self, work: Work, chance: float) -> None:
        found = shed_field(work, self.level, self.bounds.long_output_tokens)
        if found is not None:
            message = "the server is under load and refuses optional work for a while"
            raise Refused(503, message, "degraded", found, self.retry_after_s(chance))

    def check_waiting_tokens(self, num_tokens: int, chance: float) -> None:
        bound = self.bounds.max_waiting_tokens
        if bound and self.num_waiting and self.num_waiting_tokens + num_tokens > bound:
            message = f"the queue is full: {self.num_waiting_tokens} tokens are waiting"
            raise self._full(message, chance)

    def time_given_s(self, work: Work, passed_s: float, num_places: int, chance: float) -> float:
        """From the request's arrival, `passed_s` ago; `work` is one of its parts, which are alike.
        Raises Refused where the queue takes longer."""
        wait_s = self.expected_wait_s(num_places, work.priority)
        given_s = self.bounds.request_timeout_s
        if work.timeout_s is not None:
            given_s = min(given_s, work.timeout_s)
            if given_s <= passed_s + wait_s:
                message = f"{given_s * 1e3:.0f} ms cannot be met: the queue takes {wait_s:.1f} s"
                name, after_s = "X-Request-Deadline-Ms", self.retry_after_s(chance)
                raise Refused(408, message, "deadline_exceeded", name, after_s)
        if self.bounds.max_wait_s and wait_s > self.bounds.max_wait_s:
            raise self._full(f"the queue is too long: {wait_s:.0f} s", chance)
        return given_s

    def refuse(self) -> None:
        """Somebody was refused, for whatever reason."""
        self.num_refused += 1
        self._refused.add(1)

    def enter(self, place: Place) -> None:
        self._open[place] = None
        self._num_places += place.work.n
        self._held[place.tenant] += place.work.n
        self.num_admitted += 1

    def leave(self, place: Place) -> None:
        del self._open[place]
        self._num_places -= place.work.n
        self._held[place.tenant] -= place.work.n
        if not self._held[place.tenant]:
            del self._held[place.tenant]

    def ended(self, place: Place, num_output_tokens: int) -> None:
        """It is about to leave, because it was answered: that is what the pace is measured by."""
        self._drain.note(place.work.n)
        if place.work.open_ended:
            each = num_output_tokens / place.work.n
            self._answer_tokens += (each - self._answer_tokens) / ANSWERS_REMEMBERED

    def pass_time(self, now: float, memory_pressure: float) -> None:
        """Until `now`: counts fade, and a step of the ladder is taken or undone."""
        self._drain.pass_time(now, busy=self._num_places > 0)
        self._refused.pass_time(now)
        before, pressure = self._ladder.level, max(self._pressure(), memory_pressure)
        if self._ladder.update(pressure, now) != before:
            self.listen(self._ladder.level, pressure)

    def _full(self, message: str, chance: float) -> Refused:
        return Refused(503, message, "queue_full", retry_after_s=self.retry_after_s(chance))

    def _pressure(self) -> float:
        """0 idle … 1 full: of places or of tokens, whichever is closer to its end."""
        bounds = self.bounds
        found = [self.num_waiting / bounds.max_ordinary if bounds.max_waiting else 0.0]
        if bounds.max_waiting_tokens:
            found.append(self.num_waiting_tokens / bounds.max_waiting_tokens)
        return max(found)
