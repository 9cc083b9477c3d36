"""Linear layers over weights in their own format: floats, int8 per channel, codes in groups.

Owns: the kernel, the formula of each format, and how tall a tile of rows is.
May not know: names, files, how a weight came to the card (`weights.py`).
Read next: `weights.py`; `../../quant/formats.py`, what the formats are.

    float      y[n] = Σ_k x[k] · w[n, k]
    codes      y[n] = Σ_g ( scale[n, g] · Σ_{k in g} x[k] · (code[n, k] − zero)
                            + minimum[n, g] · Σ_{k in g} x[k] )

The sum over K runs in pieces, from 0 on, whose length depends on the format alone; it is never
split between programs. So no other row of a step changes a row's bits, as long as the machine's
matrix instruction is the same. A compiler picks it by the tile, and tiles fit the step: `steady`
takes one tile for all.

A code is a whole number below 2⁸, exact in float16 and bfloat16: products of codes are exact, and
no weight is rounded again. Four-bit codes lie two in a byte: byte i of a run of `piece` bytes
has value i of the run in its lower half, value i + `piece` in its upper one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from firsthand.compute.triton.launch import OPTIONS, kernel, power_of_two, product_type
from firsthand.values import dataclass

LEAST_PIECE = 16  # of K: what a matrix instruction takes
MOST_PIECE = 128
FLOAT_PIECE = 64
STEADY = (32, 32)  # rows and columns of a tile, where all steps have one


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWeight:
    """A matrix (N, K) on the device, in its own format.

    `values`: floats (N, K); int8 codes (N, K); or uint8 (N, runs · piece), two codes each. Scales
    and minima are (N, groups), float16 or float32; none for floats. `group` values share one.
    """

    shape: tuple[int, int]
    values: torch.Tensor
    scales: torch.Tensor | None = None
    minima: torch.Tensor | None = None
    group: int = 0
    zero: int = 0

    @property
    def num_bytes(self) -> int:
        held = (self.values, self.scales, self.minima)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    @property
    def piece(self) -> int:
        return piece_of(self.group) if self.scales is not None else FLOAT_PIECE

    @property
    def form(self) -> str:
        if self.scales is None:
            return "float"
        return "codes4" if self.values.dtype == torch.uint8 else "codes8"


def piece_of(group: int) -> int:
    """How many values along K are summed before they are scaled; below `LEAST_PIECE`: no kernel
    takes such groups."""
    return math.gcd(group, MOST_PIECE)


@kernel
def _scaled(
    total: tl.tensor, a: tl.tensor, codes: tl.tensor, scales: tl.tensor, minima: tl.tensor,
    group: tl.tensor, column: tl.tensor, n: tl.tensor, num_groups: tl.tensor,
    HAS_MINIMUM: tl.constexpr, DOT: tl.constexpr,
) -> Any:  # fmt: skip
    """total + scale · a · codesᵀ + minimum · Σ a, for a piece that lies in one group."""
    # Behind the last group x is 0: any other does.
    at = column.to(tl.int64) * num_groups + tl.minimum(group, num_groups - 1)
    inside = column < n
    scale = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
    # By way of float32: the interpreter knows no way from integers to bfloat16.
    factors = tl.trans(codes.to(tl.float32).to(DOT))
    total += tl.dot(a, factors, input_precision="ieee") * scale[None, :]
    if HAS_MINIMUM:
        minimum = tl.load(minima + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(a.to(tl.float32), axis=1)[:, None] * minimum[None, :]
    return total


@kernel
def _linear(
    x: tl.tensor, values: tl.tensor, scales: tl.tensor, minima: tl.tensor, bias: tl.tensor,
    out: tl.tensor, rows: tl.tensor, n: tl.tensor, k: tl.tensor, stride: tl.tensor,
    group: tl.tensor, num_groups: tl.tensor, zero: tl.tensor, FORM: tl.constexpr,
    PIECE: tl.constexpr, HAS_MINIMUM: tl.constexpr, HAS_BIAS: tl.constexpr, DOT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> Any:  # fmt: skip
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    within = tl.arange(0, PIECE)
    from_x = x + row.to(tl.int64)[:, None] * k
    from_w = values + column.to(tl.int64)[:, None] * stride
    is_row, is_column = (row < rows)[:, None], (column < n)[:, None]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, k, 2 * PIECE if FORM == "codes4" else PIECE):
        low = start + within
        a = tl.load(from_x + low[None, :], mask=is_row & (low < k)[None, :], other=0.0)
        if FORM == "float":
            w = tl.load(from_w + low[None, :], mask=is_column & (low < k)[None, :], other=0.0)
            total = tl.dot(a.to(DOT), tl.trans(w.to(DOT)), total, input_precision="ieee")
        elif FORM == "codes8":
            c = tl.load(from_w + low[None, :], mask=is_column & (low < k)[None, :], other=0)
            total = _scaled(
                total, a.to(DOT), c.to(tl.int32) - zero, scales, minima, start // group, column, n,
                num_groups, HAS_MINIMUM, DOT,
            )  # fmt: skip
        else:
            pair = tl.load(from_w + (start // 2 + within)[None, :], mask=is_column, other=0)
            pair = pair.to(tl.int32)
            total = _scaled(
                total, a.to(DOT), (pair & 15) - zero, scales, minima, start // group, column, n,
                num_groups, HAS_MINIMUM, DOT,
            )  # fmt: skip
            high = low + PIECE
            a = tl.load(from_x + high[None, :], mask=is_row & (high < k)[None, :], other=0.0)
            total = _scaled(
                total, a.to(DOT), (pair >> 4) - zero, scales, minima, (start + PIECE) // group,
                column, n, num_groups, HAS_MINIMUM, DOT,
            )  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias + column, mask=column < n, other=0.0)[None, :]
    at = out + row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(at, total, mask=is_row & (column < n)[None, :])


def linear(
    x: torch.Tensor,
    weight: DeviceWeight,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    steady: bool = False,
) -> None:
    """out (T, N) = x (T, K) · weightᵀ + bias; x and out contiguous, bias float32 (N,). A product of
    floats is made in the weight's type, to which x is rounded."""
    rows = x.shape[0]
    n, k = weight.shape
    height, columns = STEADY if steady else tile_of(rows)
    form = weight.form
    if form == "float":
        x = x.to(weight.values.dtype)
    scales, minima = weight.scales, weight.minima
    _linear[(triton.cdiv(n, columns), triton.cdiv(rows, height))](
        x,
        weight.values,
        x if scales is None else scales,
        x if minima is None else minima,
        x if bias is None else bias,
        out,
        rows,
        n,
        k,
        weight.values.shape[1],
        max(1, weight.group),
        1 if scales is None else scales.shape[1],
        weight.zero,
        FORM=form,
        PIECE=weight.piece,
        HAS_MINIMUM=minima is not None,
        HAS_BIAS=bias is not None,
        DOT=product_type(x.dtype),
        ROWS=height,
        COLUMNS=columns,
        **OPTIONS,
    )


def tile_of(rows: int) -> tuple[int, int]:
    """Rows and columns of a tile. Few rows get narrow ones: more programs, so that more of the
    memory is asked at once."""
    if rows <= 16:
        return 16, 16
    return min(power_of_two(rows), 64), 64


@kernel
def _embed(
    ids: tl.tensor, values: tl.tensor, scales: tl.tensor, minima: tl.tensor, out: tl.tensor,
    factor: tl.tensor, k: tl.tensor, stride: tl.tensor, group: tl.tensor, num_groups: tl.tensor,
    zero: tl.tensor, FORM: tl.constexpr, PIECE: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < k
    which = tl.load(ids + row).to(tl.int64)
    if FORM == "codes4":
        within = at % (2 * PIECE)
        byte = at // (2 * PIECE) * PIECE + within % PIECE
        pair = tl.load(values + which * stride + byte, mask=inside, other=0).to(tl.int32)
        code = tl.where(within < PIECE, pair & 15, pair >> 4) - zero
    elif FORM == "codes8":
        code = tl.load(values + which * stride + at, mask=inside, other=0).to(tl.int32) - zero
    if FORM == "float":
        y = tl.load(values + which * stride + at, mask=inside, other=0.0).to(tl.float32)
    else:
        of = which * num_groups + at // group
        y = code.to(tl.float32) * tl.load(scales + of, mask=inside, other=0.0).to(tl.float32)
        if HAS_MINIMUM:
            y += tl.load(minima + of, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * k + at, y * factor, mask=inside)


def embed(ids: torch.Tensor, table: DeviceWeight, factor: float, out: torch.Tensor) -> None:
    """out (T, K) = row ids[t] of the table, decoded to float32, times `factor`."""
    k = table.shape[1]
    block = min(power_of_two(k), 1024)
    scales, minima = table.scales, table.minima
    _embed[(ids.shape[0], triton.cdiv(k, block))](
        ids,
        table.values,
        out if scales is None else scales,
        out if minima is None else minima,
        out,
        factor,
        k,
        table.values.shape[1],
        max(1, table.group),
        1 if scales is None else scales.shape[1],
        table.zero,
        FORM=table.form,
        PIECE=table.piece,
        HAS_MINIMUM=minima is not None,
        BLOCK=block,
        **OPTIONS,
    )
