"""A step cut into micro-batches, which are in different stages at the same time.

Owns: where a batch is cut, and into how many parts it pays.
May not know: stages, how a part travels.
Read next: `executor.py`.

Rows are cut wherever they lie, also within a sequence: a later part of a prompt reads what an
earlier one has stored, for each stage computes the parts in their order. A row's bits depend on no
other row of its batch, so the parts together have the bits of the whole.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, sqrt

import numpy as np

from firsthand.compute.batch import FlatBatch
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a step of so many rows takes over all stages: `fixed_ms`, most of it the reading of the
    weights, and `row_ms` for each of its rows; each part pays `fixed_ms` again."""

    fixed_ms: float
    row_ms: float

    def step_ms(self, num_rows: int, num_parts: int, num_stages: int) -> float:
        """With equal stages: (parts + stages − 1) turns, each of one part in one stage."""
        turn_ms = (self.fixed_ms + self.row_ms * num_rows / num_parts) / num_stages
        return (num_parts + num_stages - 1) * turn_ms

    def best_parts(self, num_rows: int, num_stages: int) -> int:
        """Where `step_ms` is least: near sqrt((stages − 1) · row_ms · rows / fixed_ms)."""
        if num_stages == 1 or self.row_ms <= 0.0:
            return 1
        if self.fixed_ms <= 0.0:
            return num_rows
        at = min(sqrt((num_stages - 1) * self.row_ms * num_rows / self.fixed_ms), num_rows)
        near = {max(1, int(at)), max(1, ceil(at))}
        return min(near, key=lambda parts: (self.step_ms(num_rows, parts, num_stages), parts))


def split_batch(batch: FlatBatch, num_parts: int) -> list[FlatBatch]:
    """At most so many parts, of equal numbers of rows or one more in the first ones."""
    num_parts = min(num_parts, batch.num_tokens)
    each, more = divmod(batch.num_tokens, num_parts)
    bounds = [part * each + min(part, more) for part in range(num_parts + 1)]
    return [_rows(batch, first, last) for first, last in pairwise(bounds)]


def _rows(batch: FlatBatch, first: int, last: int) -> FlatBatch:
    """Rows `first` … `last` − 1, of the sequences that have any of them."""
    starts = np.clip(batch.row_starts, first, last) - np.int32(first)
    has_rows = np.flatnonzero(np.diff(starts))
    one, end = int(has_rows[0]), int(has_rows[-1]) + 1
    wanted = batch.logit_rows
    return FlatBatch(
        token_ids=batch.token_ids[first:last],
        positions=batch.positions[first:last],
        row_starts=starts[one : end + 1],
        block_starts=batch.block_starts[one:end],
        block_size=batch.block_size,
        logit_rows=wanted[(wanted >= first) & (wanted < last)] - np.int32(first),
        adapters=batch.adapters[one:end],
    )
