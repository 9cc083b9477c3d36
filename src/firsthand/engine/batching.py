"""Plan integers become arrays: the flat batch of a step.

Owns: the order of rows, and what of the last step's arrays may be used again.
May not know: executors, tokens' meaning, why a sequence runs.
Read next: `compute/batch.py` (the batch and its invariants), `runner.py`.

Between two steps almost nothing of the block tables changes, and they are most of a batch: 256
sequences of 64 blocks have 16,384 entries. A row is kept while its sequence comes with the same
tuple of block ids, by identity: a tuple never changes, and in a memory that gives a sequence
several ids, an id means the same block for ever. A memory that moves what it gave (the contiguous
one, when it compacts) gives one id per sequence; such a row is asked for anew in every step. So
what is kept can save time, and cannot change a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.kvcache.store import KVStore
from firsthand.scheduling.plan import SequenceSlice, StepPlan

BlockIds = tuple[int, ...]


class Batcher:
    """Makes the batches of one store, step after step. A batch is good until the next is made."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._tables = np.empty((0, 0), dtype=np.int64)  # a row per sequence, and spare ones
        self._rows: list[BlockIds] = []  # what the rows of `_tables` were made from
        self._starts: dict[int, tuple[BlockIds, NDArray[np.int64]]] = {}  # by the tuple's identity

    def batch(self, plan: StepPlan) -> FlatBatch:
        """The plan's slices one after another, in the plan's order. Not for an empty plan."""
        slices = plan.slices
        lengths = [len(piece.token_ids) for piece in slices]
        row_starts = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=row_starts[1:])
        num_tokens = int(row_starts[-1])
        tokens = chain.from_iterable([piece.token_ids for piece in slices])
        firsts = np.array([piece.start for piece in slices], dtype=np.int32) - row_starts[:-1]
        adapters = tuple([piece.adapter for piece in slices])
        return FlatBatch(
            token_ids=np.fromiter(tokens, dtype=np.int32, count=num_tokens),
            positions=np.repeat(firsts, lengths) + np.arange(num_tokens, dtype=np.int32),
            row_starts=row_starts,
            block_starts=self._block_starts(slices),
            block_size=self._store.block_size,
            logit_rows=_logit_rows(plan, row_starts),
            adapters=adapters if any(adapters) else (),
        )

    def _block_starts(self, slices: Sequence[SequenceSlice]) -> NDArray[np.int64]:
        tables = [piece.block_ids for piece in slices]
        width = max(map(len, tables))
        if width != self._tables.shape[1] or len(tables) > self._tables.shape[0]:
            self._tables = np.empty((max(16, 2 * len(tables)), width), dtype=np.int64)
            self._rows = []
        rows, self._rows = self._rows, []  # should this fail half done, nothing is known
        known = len(rows)
        for row, block_ids in enumerate(tables):
            if row < known and len(block_ids) > 1 and block_ids is rows[row]:
                continue
            starts = self._starts_of(block_ids)
            self._tables[row, : len(block_ids)] = starts
            self._tables[row, len(block_ids) :] = -1
        self._rows = tables
        if len(self._starts) > 4 * len(tables):
            self._starts = {
                id(ids): self._starts[id(ids)] for ids in tables if id(ids) in self._starts
            }
        return self._tables[: len(tables)]

    def _starts_of(self, block_ids: BlockIds) -> NDArray[np.int64] | list[int]:
        if len(block_ids) <= 1:
            return [self._store.block_start(block_id) for block_id in block_ids]
        kept = self._starts.get(id(block_ids))
        if kept is None:
            starts = np.array([self._store.block_start(block_id) for block_id in block_ids])
            kept = self._starts[id(block_ids)] = block_ids, starts
        return kept[1]


def _logit_rows(plan: StepPlan, row_starts: NDArray[np.int32]) -> NDArray[np.int32]:
    """The last row of each slice that draws, and those of the known token and its guesses."""
    drawing = [row for row, piece in enumerate(plan.slices, 1) if piece.draw is not None]
    lasts: NDArray[np.int32] = row_starts[np.array(drawing, dtype=np.intp)] - np.int32(1)
    if not plan.max_guesses:
        return lasts
    counts = np.array([piece.num_guesses for piece in plan.slices if piece.draw], dtype=np.int32)
    back = [np.arange(count, -1, -1, dtype=np.int32) for count in counts]
    return np.asarray(np.repeat(lasts, counts + 1) - np.concatenate(back), dtype=np.int32)


def flat_batch(plan: StepPlan, store: KVStore) -> FlatBatch:
    """A batch on its own."""
    return Batcher(store).batch(plan)
