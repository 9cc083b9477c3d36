"""The door of one step: who is asked next, and who may pass whom.

Owns: the sequences that found no room in the step being planned, and what that closes.
May not know: blocks, the budget.
Read next: `scheduler.py`, the only caller.

A sequence that does not fit now blocks nobody behind it, within bounds: when it is overdue, nobody
is admitted past it; when its class is owed, no lower class; when it was evicted, or `max_passed`
others have passed it, nobody of its class or a lower one. And in one step only `lookahead` are
tried in vain.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from firsthand.scheduling.policy import CLASSES, OVERDUE, Policy, Turn, level, next_turn
from firsthand.scheduling.sequence import Sequence
from firsthand.scheduling.waiting import Queue


class Door:
    """Made anew for each step. Classes from `closed` on admit nobody; `credits` are the caller's
    list, which changes while the step is planned."""

    def __init__(
        self, policy: Policy, queue: Queue, credits: Items[float], now_s: float, closed: int
    ) -> None:
        self._policy = policy
        self._queue = queue
        self._credits = credits
        self._now_s = now_s
        self._closed = closed
        self._unfit: dict[int, Sequence] = {}

    @property
    def first_unfit(self) -> Sequence | None:
        """The one that was tried first, in vain."""
        return next(iter(self._unfit.values()), None)

    def next(self, hungry: Items[Sequence], *, is_full: bool) -> Sequence | None:
        """Who is next for tokens: of those that run with a gap, and of those that wait.

        In a class the running go first, so that prompts are finished one after the other; only
        what is overdue is not kept from its turn by them.
        """
        asked: list[Sequence] = []
        classes: set[int] = set()
        for sequence in hungry:
            if sequence.class_index not in classes:
                classes.add(sequence.class_index)
                asked.append(sequence)
        if self._closed and not is_full:
            for sequence in self._queue.heads(self._now_s, self._unfit.keys()):
                if sequence.class_index >= self._closed:
                    continue
                if sequence.class_index not in classes or self._level(sequence) == OVERDUE:
                    asked.append(sequence)
        if len(asked) < 2:
            return asked[0] if asked else None
        turns = [Turn(one.class_index, self._level(one), one.sequence_id) for one in asked]
        return asked[next_turn(turns, self._credits, self._policy.shares)]

    def close(self) -> None:
        """The one that room was made for is in: nobody uses the same opening to pass others."""
        self._closed = NOBODY

    def refuse(self, sequence: Sequence) -> None:
        """It found no room now."""
        self._unfit[sequence.sequence_id] = sequence
        if self._level(sequence) == OVERDUE or len(self._unfit) >= self._policy.lookahead:
            self._closed = 0
        elif sequence.num_preemptions or sequence.num_passed >= self._policy.max_passed:
            self._closed = min(self._closed, sequence.class_index)
        elif self._credits[sequence.class_index] > 0:
            self._closed = min(self._closed, sequence.class_index + 1)

    def passed(self, sequence: Sequence) -> None:
        """It was admitted, past those that were refused."""
        sequence.num_passed = 0
        for unfit in self._unfit.values():
            if unfit.class_index <= sequence.class_index:
                unfit.num_passed += 1

    def _level(self, sequence: Sequence) -> int:
        """Ageing is for those that wait; what runs has its class."""
        if sequence.is_running:
            return sequence.class_index
        waited_s = self._now_s - sequence.arrival_s
        return level(sequence.class_index, waited_s, self._policy.ageing_s)


NOBODY, EVERYBODY = 0, len(CLASSES)
