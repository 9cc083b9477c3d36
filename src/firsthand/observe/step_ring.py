"""The last steps of all engines, packed: 64 bytes each, in memory that is set aside at once.

Owns: what is kept of a step, its number, how long it is kept.
May not know: who took part in a step (`records.py`), who asks.
Read next: `recorder.py`; `../engine/facts.py`, from which all of it comes.

Packed, because a hundred thousand objects would be looked at by each collection of garbage.
"""

from __future__ import annotations

import struct

from firsthand.engine.facts import StepFacts
from firsthand.values import dataclass

_ROW = struct.Struct("<d5f8IHB?")
ROW_BYTES = _ROW.size
MAX_TOLD = 255  # of a count that has one byte


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `number` counts those of all models since the server began. `model` is a place in
    the recorder's list of models. `forward_ms` and `sample_ms` lie inside `run_ms`. Counts of
    waiting, running and blocks are those after it."""

    number: int
    started_s: float
    plan_ms: float
    run_ms: float
    forward_ms: float
    sample_ms: float
    commit_ms: float
    num_sequences: int
    num_tokens: int
    num_drawn: int
    num_finished: int
    num_waiting: int
    num_running: int
    num_used_blocks: int
    num_cached_blocks: int
    model: int
    num_preempted: int
    failed: bool

    @property
    def total_ms(self) -> float:
        return self.plan_ms + self.run_ms + self.commit_ms


class StepRing:
    """`add` gives a step its number; `get` finds it as long as it is kept."""

    def __init__(self, max_bytes: int) -> None:
        self._capacity = max(1, max_bytes // ROW_BYTES)
        self._rows = bytearray(self._capacity * ROW_BYTES)
        self._next = 0

    @property
    def first_number(self) -> int:
        """The oldest that is kept."""
        return max(0, self._next - self._capacity)

    def add(self, facts: StepFacts, num_tokens: int, model: int) -> int:
        number = self._next
        _ROW.pack_into(
            self._rows,
            number % self._capacity * ROW_BYTES,
            facts.started_s,
            facts.plan_ms,
            facts.run_ms,
            facts.forward_ms,
            facts.sample_ms,
            facts.commit_ms,
            len(facts.request_ids),
            num_tokens,
            facts.num_drawn,
            facts.num_finished,
            facts.num_waiting,
            facts.num_running,
            facts.num_used_blocks,
            facts.num_cached_blocks,
            model,
            min(MAX_TOLD, len(facts.planned.preempted)),
            facts.error is not None,
        )
        self._next = number + 1
        return number

    def get(self, number: int) -> Step | None:
        """None: it is kept no more, or has not been."""
        if not self.first_number <= number < self._next:
            return None
        row = _ROW.unpack_from(self._rows, number % self._capacity * ROW_BYTES)
        return Step(number, *row)
