"""Batches of requests that generate nothing: when they start, and who goes together.

Owns: the window (largest batch, longest wait, smallest batch that starts early), who waits in it.
May not know: threads, timers, arrays: the time comes in as an argument, and `due_s` tells whoever
sleeps when to look again.
Read next: `engine.py`, which holds requests back here; `worker.py` and `generation/child.py` sleep.
Seen in: `firsthand lab window-timer`.

What generates joins the running steps at once. A text that is to be scored or pooled is computed
once and gone; there a step is the better used the more of them it has. So they wait for company,
but never longer than `max_wait_s`, whether another one comes or not. A batch starts

1. when `max_batch` wait: the oldest, and those whose length is nearest to its;
2. when the oldest has waited `max_wait_s`, or its deadline has come;
3. when `min_batch` wait and nothing of an earlier batch runs: an idle engine gains nothing by more.

Nothing is padded here, so lengths change no bit and waste nothing; alike, they end together.
"""

from __future__ import annotations

from dataclasses import field

from firsthand.checks import check_integer, check_number
from firsthand.errors import InvalidRequest
from firsthand.request import Request
from firsthand.scheduling.limits import MAX_SEQUENCES
from firsthand.values import dataclass

MAX_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Window:
    """With `max_wait_s` 0 nobody waits. Raises InvalidRequest, naming the field."""

    max_batch: int = 16
    max_wait_s: float = 0.0
    min_batch: int = 1

    def __post_init__(self) -> None:
        check_integer("max_batch_size", self.max_batch, 1, MAX_SEQUENCES)
        check_number("max_batch_wait_s", self.max_wait_s, 0.0, MAX_WAIT_S)
        check_integer("min_batch_size", self.min_batch, 1)
        if self.min_batch > self.max_batch:
            raise InvalidRequest("min_batch_size", f"is over max_batch_size, {self.max_batch}")


@dataclass(frozen=True, slots=True)
class Waiting:
    request: Request
    arrival_s: float
    until_s: float

    @property
    def length(self) -> int:
        return len(self.request.prompt_token_ids)


@dataclass(slots=True, eq=False)
class MicroBatcher:
    """`add`, then `take` whenever `due_s` has come; `ended` for each that was taken."""

    window: Window
    _waiting: dict[str, Waiting] = field(default_factory=dict)  # in the order of arrival
    _running: set[str] = field(default_factory=set)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, request: Request, now_s: float) -> None:
        until_s = now_s + self.window.max_wait_s
        if request.deadline_s is not None:
            until_s = min(until_s, request.deadline_s)
        self._waiting[request.request_id] = Waiting(request, now_s, until_s)

    def remove(self, request_id: str) -> Request | None:
        """It is given up while it waits. None: it does not wait."""
        found = self._waiting.pop(request_id, None)
        return None if found is None else found.request

    @property
    def is_running(self) -> bool:
        """Whether something of an earlier batch has not ended."""
        return bool(self._running)

    def ended(self, request_id: str) -> None:
        """No-op for what never was in a batch."""
        self._running.discard(request_id)

    def due_s(self) -> float | None:
        """When the next batch starts if nothing comes or ends before; None: nobody waits."""
        if not self._waiting:
            return None
        if self._is_full:
            return min(one.arrival_s for one in self._waiting.values())
        return min(one.until_s for one in self._waiting.values())

    def take(self, now_s: float) -> list[Waiting]:
        """The batch that starts now; empty: none does. Call again until it is."""
        due_s = self.due_s()
        if due_s is None or now_s < due_s:
            return []
        waiting = list(self._waiting.values())
        oldest = min(waiting, key=lambda one: one.until_s)
        nearest = sorted(waiting, key=lambda one: (one is not oldest, _distance(one, oldest)))
        batch = nearest[: self.window.max_batch]
        for one in batch:
            del self._waiting[one.request.request_id]
            self._running.add(one.request.request_id)
        return batch

    @property
    def _is_full(self) -> bool:
        num_waiting = len(self._waiting)
        is_enough = num_waiting >= self.window.min_batch and not self._running
        return is_enough or num_waiting >= self.window.max_batch


def _distance(one: Waiting, other: Waiting) -> int:
    return abs(one.length - other.length)
