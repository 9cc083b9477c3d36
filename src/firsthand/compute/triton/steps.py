"""A step's integers on the device: one buffer, filled on the host, sent in one copy.

Owns: the buffer's layout, and who of a step attends in which way.
May not know: kernels, weights.
Read next: `../batch.py` (what a step is); `replay.py`, which reads the buffer.

The places in the buffer never change, so a graph that was captured over them can run any step of
its size. It is written anew when the step before has been read to its end, so the copy that is
sent without waiting is never overwritten.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.triton.attention import Queries
from firsthand.compute.triton.cache import Places
from firsthand.compute.triton.tiles import Tiles
from firsthand.errors import EngineError
from firsthand.values import dataclass

PADDING = -1  # the position of a row that nobody reads


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Limits of a step. `max_singles` rows may have a program for each split of their context."""

    max_tokens: int
    max_logit_rows: int
    max_singles: int
    tiles: Tiles
    num_splits: int
    table_width: int
    block_size: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What the kernels are told of one step of T rows, of which L have logits."""

    token_ids: torch.Tensor
    places: Places
    logit_rows: torch.Tensor
    queries: Queries

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])


class StepBuffer:
    """One step at a time."""

    def __init__(self, sizes: StepSizes, device: torch.device) -> None:
        self._sizes = sizes
        t = sizes.max_tokens
        lengths = {
            "token_ids": t,
            "positions": t,
            "table_at": t,
            "logit_rows": sizes.max_logit_rows,
            "singles": sizes.max_singles,
            "firsts": t,
            "counts": t,
            "tables": t * sizes.table_width,
        }
        ends = np.cumsum(list(lengths.values())).tolist()
        self._parts = {
            name: slice(end - length, end)
            for (name, length), end in zip(lengths.items(), ends, strict=True)
        }
        is_cuda = device.type == "cuda"
        self._sent = torch.empty(ends[-1], dtype=torch.int32, pin_memory=is_cuda)
        self._held = (
            torch.empty(ends[-1], dtype=torch.int32, device=device) if is_cuda else self._sent
        )
        self._host = self._sent.numpy()

    @property
    def num_bytes(self) -> int:
        return int(self._held.nbytes)

    def fill(self, batch: FlatBatch, num_rows: int | None = None) -> Step:
        """The step on the device; nothing waits for the copy. `num_rows`: rows of padding below,
        each of its own sequence, for a graph of that size; see `fits`."""
        t, sizes = batch.num_tokens, self._sizes
        padded = t if num_rows is None else num_rows
        num_sequences, width = batch.block_starts.shape
        if width > sizes.table_width or batch.block_size != sizes.block_size:
            raise EngineError(f"a step with block tables of {width}; at most {sizes.table_width}")
        lengths = np.diff(batch.row_starts)
        self._write("token_ids", batch.token_ids, padded, 0)
        self._write("positions", batch.positions, padded, PADDING)
        table_at = np.repeat(np.arange(num_sequences, dtype=np.int32) * width, lengths)
        self._write("table_at", table_at, padded, 0)
        num_logits = len(batch.logit_rows) if num_rows is None else num_rows
        self._write("logit_rows", batch.logit_rows, num_logits, 0)
        singles, firsts, counts = who_attends(batch.row_starts, sizes)
        if num_rows is not None:
            singles = np.arange(num_rows, dtype=np.int32)
        self._write("singles", singles, len(singles))
        self._write("firsts", firsts, len(firsts))
        self._write("counts", counts, len(counts))
        self._write("tables", batch.block_starts.reshape(-1), num_sequences * width)
        used = self._parts["tables"].start + num_sequences * width
        if self._held is not self._sent:
            self._held[:used].copy_(self._sent[:used], non_blocking=True)
        return self._step(padded, num_logits, len(singles), len(firsts))

    def fits(self, batch: FlatBatch) -> bool:
        """Whether a graph can run the step: every sequence has one row, and a program per split."""
        return batch.num_tokens == batch.num_sequences <= self._sizes.max_singles

    def _step(self, rows: int, num_logits: int, num_singles: int, num_tiles: int) -> Step:
        def part(name: str, count: int) -> torch.Tensor:
            start = self._parts[name].start
            return self._held[start : start + count]

        tables = self._held[self._parts["tables"]]
        places = Places(
            part("positions", rows), part("table_at", rows), tables, self._sizes.block_size
        )
        queries = Queries(
            part("singles", num_singles),
            part("firsts", num_tiles),
            part("counts", num_tiles),
            self._sizes.num_splits,
            self._sizes.tiles,
        )
        return Step(part("token_ids", rows), places, part("logit_rows", num_logits), queries)

    def _write(self, name: str, values: NDArray[np.integer], count: int, fill: int = 0) -> None:
        start = self._parts[name].start
        end = start + len(values)
        self._host[start:end] = values
        self._host[end : start + count] = fill


def who_attends(
    row_starts: NDArray[np.int32], sizes: StepSizes
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Single rows; and the first row and the number of rows of each tile. A sequence of one row
    is a single one as long as there is room for them; the sums are the same either way."""
    starts, lengths = row_starts[:-1], np.diff(row_starts)
    alone = np.flatnonzero(lengths == 1)[: sizes.max_singles]
    tiled = np.setdiff1d(np.flatnonzero(lengths > 0), alone, assume_unique=True)
    num_tiles = -(-lengths[tiled] // sizes.tiles.rows)
    nth = np.arange(num_tiles.sum()) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
    done = nth * sizes.tiles.rows
    firsts = np.repeat(starts[tiled], num_tiles) + done
    counts = np.minimum(np.repeat(lengths[tiled], num_tiles) - done, sizes.tiles.rows)
    return starts[alone], firsts.astype(np.int32), counts.astype(np.int32)
