"""One step's work as flat arrays: no padding, positions and block tables per row.

Owns: `FlatBatch` and its invariants.
May not know: scheduling, models, devices.
Read next: `ops.py`, the operators that run over it.
Seen in: `firsthand lab padding`.

Legend of shapes, here and everywhere: T tokens in the step, S sequences, L rows whose logits are
wanted, H query heads, G key/value heads, D head size, M model width, F feed-forward width,
V vocabulary, P block size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class FlatBatch:
    """Rows of all sequences one after another.

    Row r of sequence s (row_starts[s] ≤ r < row_starts[s + 1]) is token `token_ids[r]` at
    `positions[r]`, consecutive within a sequence. Token position p of sequence s lives in the
    store at slot `block_starts[s, p // block_size] + p % block_size`; that holds for every p up
    to the sequence's last position in this step. Unused table entries are −1. `adapters` names that
    of each sequence, "" where it has none; with no names at all, no sequence has one.
    """

    token_ids: NDArray[np.int32]  # (T,)
    positions: NDArray[np.int32]  # (T,)
    row_starts: NDArray[np.int32]  # (S + 1,), row_starts[0] = 0, row_starts[S] = T
    block_starts: NDArray[np.int64]  # (S, max blocks)
    block_size: int
    logit_rows: NDArray[np.int32]  # (L,), ascending
    adapters: tuple[str, ...] = ()  # (S,), or none

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_sequences(self) -> int:
        return int(self.row_starts.shape[0]) - 1

    def num_context_tokens(self, window: int | None = None) -> int:
        """Tokens of the store that attention reads: each sequence from the first that its first
        row sees up to its last row."""
        used = self.row_starts[1:] > self.row_starts[:-1]
        lasts = self.positions[self.row_starts[1:][used] - 1].astype(np.int64)
        firsts = self.positions[self.row_starts[:-1][used]].astype(np.int64)
        before = np.zeros_like(firsts) if window is None else np.maximum(firsts + 1 - window, 0)
        return int((lasts + 1 - before).sum())

    def num_seen_tokens(self, window: int | None = None) -> int:
        """Tokens that attention weighs: each row sees its sequence up to itself."""
        seen = self.positions.astype(np.int64) + 1
        return int((seen if window is None else np.minimum(seen, window)).sum())

    def slots(self) -> NDArray[np.int64]:
        """(T,) the store slot of each row."""
        sequence = np.repeat(np.arange(self.num_sequences), np.diff(self.row_starts))
        block, offset = np.divmod(self.positions.astype(np.int64), self.block_size)
        return np.asarray(self.block_starts[sequence, block] + offset, dtype=np.int64)
