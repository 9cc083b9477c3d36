"""Who waits, and in which order: the queue of the fair scheduler, and that of the static baseline.

Owns: the sequences that have no blocks, and how much each tenant was served.
May not know: blocks, budgets, who runs.
Read next: `policy.py`, the rules; `turns.py` and `scheduler.py`, which ask.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import field
from typing import Protocol

from firsthand.scheduling.policy import CLASSES, OVERDUE, Policy, level
from firsthand.scheduling.sequence import Sequence
from firsthand.values import dataclass

MAX_ABSENT_TENANTS = 1024  # per class, whose counts are still known


class Queue(Protocol):
    """Sequences that wait: new ones, and those that were evicted.

    `whole_length`: a sequence gets all its blocks at admission, and is never evicted.
    """

    @property
    def whole_length(self) -> bool: ...
    @property
    def num_waiting(self) -> tuple[int, ...]:
        """By class."""
        ...

    def sequences(self) -> dict[int, Sequence]:
        """All that wait, by id. For tests."""
        ...

    def begin_step(self, num_running: int) -> None:
        """Each of the running sequences computes a token in the step that begins."""
        ...

    def add(self, sequence: Sequence) -> None: ...
    def remove(self, sequence: Sequence) -> None: ...
    def heads(self, now_s: float, skip: Set[int]) -> list[Sequence]:
        """Who may be next, at most one of each class, none whose id is in `skip`."""
        ...

    def admitted(self, sequence: Sequence) -> None:
        """It leaves the queue to run, from this step on."""
        ...

    def left(self, sequence: Sequence) -> None:
        """It runs no more: ended, or evicted."""
        ...

    def served(self, sequence: Sequence, num_tokens: int) -> None:
        """It computes so many tokens more in this step than the one that each running has."""
        ...


@dataclass(slots=True, eq=False)
class _Tenant:
    """`num_served` tokens up to step `as_of`; from there on `num_running` more in each step, so
    that nothing has to be counted per sequence and step."""

    num_served: int
    as_of: int
    num_running: int = 0
    waiting: dict[int, Sequence] = field(default_factory=dict)

    @property
    def is_present(self) -> bool:
        return self.num_running > 0 or bool(self.waiting)

    def count(self, step: int) -> int:
        return self.num_served + self.num_running * (step - self.as_of)

    def settle(self, step: int) -> None:
        self.num_served = self.count(step)
        self.as_of = step


class _Class:
    """The queue of one class. Sequence ids order the arrivals, in every dictionary here."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._started: dict[int, Sequence] = {}
        self._is_sorted = True
        self.fresh: dict[int, Sequence] = {}
        self.tenants: dict[str, _Tenant] = {}

    @property
    def started(self) -> dict[int, Sequence]:
        """Sorted when somebody looks, not at each arrival: thousands can return in one step."""
        if not self._is_sorted:
            self._started = dict(sorted(self._started.items()))
            self._is_sorted = True
        return self._started

    def all(self) -> dict[int, Sequence]:
        return self.started | self.fresh

    def add(self, sequence: Sequence, step: int) -> None:
        if sequence.started:
            self._is_sorted &= sequence.sequence_id > next(reversed(self._started), -1)
            self._started[sequence.sequence_id] = sequence
            return
        self.fresh[sequence.sequence_id] = sequence
        self.tenant(sequence, step).waiting[sequence.sequence_id] = sequence

    def tenant(self, sequence: Sequence, step: int) -> _Tenant:
        """The account of a sequence's tenant, lifted to the lowest present if it was absent."""
        name = sequence.request.tenant
        tenant = self.tenants.pop(name, None) or _Tenant(0, step)
        if not tenant.is_present:
            present = [other.count(step) for other in self.tenants.values() if other.is_present]
            tenant.settle(step)
            tenant.num_served = max(tenant.num_served, min(present, default=0))
            self._forget()
        self.tenants[name] = tenant  # the last one that was dealt with stands last
        return tenant

    def remove(self, sequence: Sequence) -> None:
        if self._started.pop(sequence.sequence_id, None) is None:
            del self.fresh[sequence.sequence_id]
            del self.tenants[sequence.request.tenant].waiting[sequence.sequence_id]

    def head(self, now_s: float, step: int, policy: Policy, skip: Set[int]) -> Sequence | None:
        """Overdue by arrival; then what has started, by arrival; then the least served tenant's."""
        started = _first(self.started, skip)
        oldest = _first(self.fresh, skip)
        if oldest is None:
            return started
        waited_s = now_s - oldest.arrival_s
        is_overdue = level(self.index, waited_s, policy.ageing_s) == OVERDUE
        if is_overdue and (started is None or oldest.sequence_id < started.sequence_id):
            return oldest
        if started is not None:
            return started
        best, least = oldest, None
        for tenant in self.tenants.values():
            first = _first(tenant.waiting, skip) if tenant.waiting else None
            if first is None:
                continue
            order = (tenant.count(step), first.sequence_id)
            if least is None or order < least:
                best, least = first, order
        return best

    def _forget(self) -> None:
        absent = [name for name, tenant in self.tenants.items() if not tenant.is_present]
        for name in absent[: max(0, len(absent) - MAX_ABSENT_TENANTS)]:
            del self.tenants[name]


class FairQueue:
    """Classes, tenants and arrivals, by the rules of `policy.py`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._classes = [_Class(index) for index in range(len(CLASSES))]
        self._num_waiting = [0] * len(CLASSES)
        self._step = 0

    @property
    def whole_length(self) -> bool:
        return False

    @property
    def num_waiting(self) -> tuple[int, ...]:
        return tuple(self._num_waiting)

    def sequences(self) -> dict[int, Sequence]:
        return {key: value for one in self._classes for key, value in one.all().items()}

    def begin_step(self, num_running: int) -> None:
        self._step += 1

    def add(self, sequence: Sequence) -> None:
        self._classes[sequence.class_index].add(sequence, self._step)
        self._num_waiting[sequence.class_index] += 1

    def remove(self, sequence: Sequence) -> None:
        self._classes[sequence.class_index].remove(sequence)
        self._num_waiting[sequence.class_index] -= 1

    def heads(self, now_s: float, skip: Set[int]) -> list[Sequence]:
        found = (one.head(now_s, self._step, self._policy, skip) for one in self._classes)
        return [sequence for sequence in found if sequence is not None]

    def admitted(self, sequence: Sequence) -> None:
        tenant = self._classes[sequence.class_index].tenant(sequence, self._step)
        tenant.settle(self._step)
        tenant.num_running += 1
        self.remove(sequence)

    def left(self, sequence: Sequence) -> None:
        tenant = self._classes[sequence.class_index].tenants[sequence.request.tenant]
        tenant.settle(self._step)
        tenant.num_running -= 1

    def served(self, sequence: Sequence, num_tokens: int) -> None:
        tenant = self._classes[sequence.class_index].tenants[sequence.request.tenant]
        tenant.num_served += num_tokens


class StaticQueue:
    """The baseline: a batch is chosen together and nobody joins it until all have ended.

    The batch is the oldest request and those whose prompts are nearest to its in length: where
    rows are padded to the longest, that is what wastes least. Classes and tenants count nothing.
    """

    def __init__(self, max_sequences: int) -> None:
        self._max_sequences = max_sequences
        self._waiting: dict[int, Sequence] = {}
        self._num_waiting = [0] * len(CLASSES)
        self._batch: list[Sequence] = []

    @property
    def whole_length(self) -> bool:
        return True

    @property
    def num_waiting(self) -> tuple[int, ...]:
        return tuple(self._num_waiting)

    def sequences(self) -> dict[int, Sequence]:
        return dict(self._waiting)

    def begin_step(self, num_running: int) -> None:
        if not num_running and not self._batch:
            self._choose()

    def add(self, sequence: Sequence) -> None:
        self._waiting[sequence.sequence_id] = sequence
        self._num_waiting[sequence.class_index] += 1

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[sequence.sequence_id]
        self._num_waiting[sequence.class_index] -= 1
        if sequence in self._batch:
            self._batch.remove(sequence)

    def heads(self, now_s: float, skip: Set[int]) -> list[Sequence]:
        """The rest of the batch one by one, until one of it does not fit; that closes the batch."""
        if skip:
            self._batch.clear()
        return self._batch[:1]

    def admitted(self, sequence: Sequence) -> None:
        self.remove(sequence)

    def left(self, sequence: Sequence) -> None:
        """Nothing is counted per tenant."""

    def served(self, sequence: Sequence, num_tokens: int) -> None:
        """Nothing is counted per tenant."""

    def _choose(self) -> None:
        oldest = next(iter(self._waiting.values()), None)
        if oldest is None:
            return

        def distance(sequence: Sequence) -> tuple[int, int]:
            return (abs(sequence.gap - oldest.gap), sequence.sequence_id)

        self._batch = sorted(self._waiting.values(), key=distance)[: self._max_sequences]


def _first(waiting: dict[int, Sequence], skip: Set[int]) -> Sequence | None:
    for sequence_id, sequence in waiting.items():
        if sequence_id not in skip:
            return sequence
    return None
