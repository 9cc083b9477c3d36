"""Keys and values into the paged cache: turned, rounded to its type, written in one launch.

Owns: that kernel, and how a row finds its slot.
May not know: who owns a block, what a sequence is.
Read next: `attention.py`, which reads them back; `../../kvcache/arrays.py`, the formulas of codes.

Row t stands at position p of a sequence whose block table begins at `table_at[t]` of `tables`; its
slot is tables[table_at[t] + p // P] + p % P. A row of padding has position −1 and writes nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from firsthand.compute.triton.launch import OPTIONS, kernel, power_of_two
from firsthand.compute.triton.rows import rotated
from firsthand.values import dataclass

Angles = tuple[torch.Tensor, torch.Tensor]  # cos and sin (positions, D/2)


@dataclass(frozen=True, slots=True, eq=False)
class LayerMemory:
    """One layer's part of the slab: keys and values (slots, G, D); of codes, a step for each
    token and head (slots, G)."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None
    value_scales: torch.Tensor | None

    @property
    def code_bits(self) -> int:
        """8 or 16 where it holds codes and steps, 0 where it holds floats."""
        return 0 if self.key_scales is None else 8 * self.keys.element_size()

    @property
    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Something to point at where there are none."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys, self.values
        return self.key_scales, self.value_scales


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the rows of a step stand: positions and `table_at` (T,), int32, and all tables."""

    positions: torch.Tensor
    table_at: torch.Tensor
    tables: torch.Tensor
    block_size: int


@kernel
def rounded(x: tl.tensor) -> Any:
    """To the nearest whole number, ties to even, below 2²²."""
    return (x + 12582912.0) - 12582912.0


@kernel
def _write(
    memory: tl.tensor, scales: tl.tensor, slot: tl.tensor, first: tl.tensor, second: tl.tensor,
    heads: tl.tensor, half: tl.tensor, HEADS: tl.constexpr, HALF: tl.constexpr,
    CODES: tl.constexpr,
) -> Any:  # fmt: skip
    """One row's heads at a slot. Of codes the step is max|x| / 127 for 8 bits, |x| / 32767 for 16;
    where its inverse is no number the codes are 0, where x is none the step is none either."""
    head = tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)[None, :]
    inside = (head[:, None] < heads) & (pair < half)
    if CODES > 0:
        if CODES == 8:
            most = 127.0
            size = tl.maximum(tl.max(tl.abs(first), axis=1), tl.max(tl.abs(second), axis=1))
        else:
            most = 32767.0
            squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
            size = tl.sqrt(squares)
        # A largest value may pass over what is no number; a sum does not.
        size += 0.0 * (tl.sum(first, axis=1) + tl.sum(second, axis=1))
        is_number = size < float("inf")
        is_large = is_number & (size > 1e-36)
        factor = tl.where(is_large, most / tl.where(is_large, size, 1.0), 0.0)[:, None]
        step = tl.where(is_number, size / most, float("nan"))
        tl.store(scales + slot * heads + head, step, mask=head < heads)
        first = tl.where(factor > 0, rounded(first * factor), 0.0)
        second = tl.where(factor > 0, rounded(second * factor), 0.0)
    at = memory + (slot * heads + head[:, None]) * 2 * half + pair
    tl.store(at, first.to(memory.dtype.element_ty), mask=inside)
    tl.store(at + half, second.to(memory.dtype.element_ty), mask=inside)


@kernel
def _store(
    k: tl.tensor, v: tl.tensor, keys: tl.tensor, values: tl.tensor, key_scales: tl.tensor,
    value_scales: tl.tensor, cos: tl.tensor, sin: tl.tensor, positions: tl.tensor,
    table_at: tl.tensor, tables: tl.tensor, block_size: tl.tensor, heads: tl.tensor,
    half: tl.tensor, HEADS: tl.constexpr, HALF: tl.constexpr, CODES: tl.constexpr,
    ROTATE: tl.constexpr,
) -> Any:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + row).to(tl.int64)
    if position < 0:
        return
    block = tl.load(tables + tl.load(table_at + row) + position // block_size)
    slot = block.to(tl.int64) + position % block_size
    head = tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (pair < half)
    at = row * heads * 2 * half + head * 2 * half + pair
    if ROTATE:
        first, second = rotated(
            k + row * heads * 2 * half, cos, sin, position, heads, half, HEADS, HALF
        )
    else:
        first = tl.load(k + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(k + at + half, mask=inside, other=0.0).to(tl.float32)
    _write(keys, key_scales, slot, first, second, heads, half, HEADS, HALF, CODES)
    first = tl.load(v + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(v + at + half, mask=inside, other=0.0).to(tl.float32)
    _write(values, value_scales, slot, first, second, heads, half, HEADS, HALF, CODES)


def store(
    k: torch.Tensor,
    v: torch.Tensor,
    memory: LayerMemory,
    places: Places,
    angles: Angles | None = None,
) -> None:
    """Write k and v (T, G · D) at the rows' slots, rounded to the type of the memory; with
    `angles`, k is turned by its position first (see `rows.rope`)."""
    _, heads, head_size = memory.keys.shape
    half = head_size // 2
    cos, sin = angles or (memory.keys, memory.keys)
    _store[(k.shape[0],)](
        k,
        v,
        memory.keys,
        memory.values,
        *memory.scales,
        cos,
        sin,
        places.positions,
        places.table_at,
        places.tables,
        places.block_size,
        heads,
        half,
        HEADS=power_of_two(heads),
        HALF=power_of_two(half),
        CODES=memory.code_bits,
        ROTATE=angles is not None,
        **OPTIONS,
    )
