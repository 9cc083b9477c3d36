"""A matrix that a checkpoint holds in several tensors: codes, scales, zero points, order of groups.

Owns: how the parts of GPTQ, AWQ, compressed-tensors and float8 files become values of our formats,
without rounding.
May not know: which part of a configuration applies to which tensor (`quantized.py`).
Read next: `quant/bits.py` (packing), `quant/formats.py` (the values), `sources.py` (who reads).

All of these say: value = scale[n, g] · (code[n, k] − zero[n, g]), g = k // group.

- One zero for the whole matrix is the grouped format's own constant.
- Zeros that differ become minima, −scale · zero, in float32: scale has at most 11 significant bits
  and code − zero at most 9, so every value stays as it is to the last bit.
- A group longer than the kernels know is cut into shorter ones with the same scale.
- Where the order of groups follows the activations (act-order), the columns of a group lie apart,
  and no run of columns has one scale. Such a matrix is held as float32, which is exact and large.
- float8 has its values, times their scale, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import UnsupportedModel
from firsthand.quant.formats import (
    ChannelFormat,
    ChannelWeight,
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    Weight,
)
from firsthand.values import dataclass

Floats = NDArray[np.float32]
LARGEST_GROUP: Final = 256  # that the kernels have
GROUP_STEP: Final = 16
CUT: Final = 128


@dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """codes(a, b) are rows a…b−1 (b − a, K), unsigned. scales (N, G) in the file's type; zeros
    (N, G) unsigned like the codes. `order` (K,) is the group of each column, None for k // group.
    """

    bits: int
    group: int
    format: Format
    codes: Callable[[int, int], NDArray[np.uint8]]
    scales: Floats
    zeros: NDArray[np.uint8]
    order: NDArray[np.int64] | None

    def rows(self, start: int, stop: int) -> Weight:
        codes = self.codes(start, stop)
        scales, zeros = self.scales[start:stop], self.zeros[start:stop]
        match self.format:
            case ChannelFormat():
                return ChannelWeight(
                    self.format, _signed(codes), np.ascontiguousarray(scales[:, 0])
                )
            case GroupedFormat():
                return self._grouped(self.format, codes, scales, zeros)
            case FloatFormat():
                groups = self.order
                if groups is None:
                    groups = np.arange(codes.shape[1]) // self.group
                shifted = codes.astype(np.float32) - zeros.astype(np.float32)[:, groups]
                return FloatWeight(self.format, shifted * scales[:, groups])

    def _grouped(
        self,
        format: GroupedFormat,
        codes: NDArray[np.uint8],
        scales: Floats,
        zeros: NDArray[np.uint8],
    ) -> GroupedWeight:
        pieces = self.group // format.group
        num_groups = -(-codes.shape[1] // format.group)
        spread = np.repeat(scales, pieces, axis=1)[:, :num_groups]
        minima = None
        if format.has_minimum:
            shift = 128 if format.bits == 8 else 0
            steps = zeros.astype(np.float32) - np.float32(shift)
            minima = np.repeat(-(scales * steps), pieces, axis=1)[:, :num_groups]
        held = _signed(codes) if format.bits == 8 else codes
        return GroupedWeight(format, held, spread.astype(format.scale_dtype), minima)


def integer_matrix(
    bits: int,
    group: int | None,
    shape: tuple[int, int],
    codes: Callable[[int, int], NDArray[np.uint8]],
    scales: Floats,
    zeros: NDArray[np.uint8],
    order: NDArray[np.int64] | None,
    scale_dtype: Literal["float16", "float32"],
) -> IntegerMatrix:
    """The matrix in the format that holds it. `group` None: one scale for a whole row.

    Raises UnsupportedModel for a group that the kernels cannot have.
    """
    k = shape[1]
    width = k if group is None else group
    if order is not None and np.array_equal(order, np.arange(k) // width):
        order = None
    if order is not None:
        return IntegerMatrix(bits, width, FloatFormat("float32"), codes, scales, zeros, order)
    zero = int(zeros.flat[0])
    is_constant = bool((zeros == zero).all())
    if bits == 8 and group is None and is_constant and zero == 128 and bool((scales > 0).all()):
        return IntegerMatrix(bits, width, ChannelFormat(), codes, scales, zeros, None)
    if group is None:
        piece, width = CUT, -(-k // CUT) * CUT
    else:
        piece = group if group <= LARGEST_GROUP else CUT
    if piece % GROUP_STEP or width % piece:
        raise UnsupportedModel(
            f"groups of {group} columns; they must be a multiple of {GROUP_STEP}, and beyond "
            f"{LARGEST_GROUP} of {CUT}"
        )
    shift = 128 if bits == 8 else 0
    format = GroupedFormat(
        bits=8 if bits == 8 else 4,
        group=piece,
        scale_dtype=scale_dtype if is_constant else "float32",
        has_minimum=not is_constant,
        zero=zero - shift if is_constant else 0,
    )
    return IntegerMatrix(bits, width, format, codes, scales, zeros, None)


@dataclass(frozen=True, slots=True)
class Float8Matrix:
    """values(a, b) are rows a…b−1 (b − a, K); scales (A, B) hold for blocks of `block` = (rows,
    columns)."""

    values: Callable[[int, int], Floats]
    scales: Floats
    block: tuple[int, int]

    @property
    def format(self) -> Format:
        return FloatFormat("float32")

    def rows(self, start: int, stop: int) -> Weight:
        values = self.values(start, stop)
        high, wide = self.block
        scales = self.scales[np.arange(start, stop) // high]
        spread = np.repeat(scales, wide, axis=1)[:, : values.shape[1]]
        return FloatWeight(FloatFormat("float32"), values * spread)


def _signed(codes: NDArray[np.uint8]) -> NDArray[np.int8]:
    return (codes ^ np.uint8(128)).view(np.int8)
