"""What goes from stage to stage.

Owns: `Work`, one part of a step, which every stage hands on with its own part of it done.
May not know: how it travels.
Read next: `stage.py`, `executor.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsthand.cluster.pipeline.splits import Costs
from firsthand.cluster.pipeline.timeline import Span
from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import OpTime


class Work(NamedTuple):
    """A part of a step. `rows` are (T, M) in float32 between two stages, (L, V) logits behind the
    last one, None before the first. `copies` of blocks, (source, target), come before it."""

    step: int
    part: int
    batch: FlatBatch
    rows: NDArray[np.float32] | None = None
    copies: tuple[tuple[int, int], ...] = ()
    is_traced: bool = False
    spans: tuple[Span, ...] = ()
    costs: tuple[Costs, ...] = ()  # of each stage that traced it, in ms
    ops: tuple[OpTime, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Of the arrays that travel; beside them are some hundred bytes."""
        arrays = (
            self.rows,
            self.batch.token_ids,
            self.batch.positions,
            self.batch.row_starts,
            self.batch.block_starts,
            self.batch.logit_rows,
        )
        return sum(array.nbytes for array in arrays if array is not None)
