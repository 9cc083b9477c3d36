"""A weight in the form of the kernels: made, filled, stored, and told from another form of it.

Owns: which packed kind a format becomes, and the fingerprint of what packing makes.
May not know: plans, models, files.
Read next: `csrc/weight.hpp`, the layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.native import _native
from firsthand.quant import round as rounding
from firsthand.quant.formats import (
    ChannelFormat,
    ChannelWeight,
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    Weight,
    WeightSource,
    row_blocks,
)
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """A packed matrix, ready to be written to a file."""

    name: str
    format: Format
    weight: _native.PackedWeight

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.n, self.weight.k

    @property
    def num_bytes(self) -> int:
        return self.weight.stored_bytes

    def pieces(self) -> Iterator[memoryview]:
        """Its bytes, in order, without a copy."""
        panels, scales = self.weight.parts()
        yield panels.data
        yield memoryview(bytes(self.weight.stored_scales_at - panels.size))
        yield scales.data
        yield memoryview(bytes(self.num_bytes - self.weight.stored_scales_at - scales.size))


def packing_fingerprint() -> str:
    """A hash of what packing makes of a few small weights, one of each kind. It is part of the name
    of whatever is stored: another layout, or another rounding, is never taken for this one."""
    n, k = 19, 70
    values = (np.arange(n * k, dtype=np.float32).reshape(n, k) * 37 % 101 - 50) / np.float32(64)
    samples: list[Weight] = [
        FloatWeight(FloatFormat("float32"), values),
        FloatWeight(FloatFormat("float16"), values.astype(np.float16)),
        FloatWeight(FloatFormat("bfloat16"), (values.view(np.uint32) >> 16).astype(np.uint16)),
        rounding.to_channel_int8(values),
        rounding.to_grouped(values, 4, 32, "float16"),
        rounding.to_grouped(values, 8, 32, "float32"),
    ]
    digest = hashlib.sha256()
    for sample in samples:
        weight = new_packed(sample.format, n, k)
        fill_rows(weight, 0, sample)
        for piece in Stored("sample", sample.format, weight).pieces():
            digest.update(piece)
    return digest.hexdigest()


def pack(source: WeightSource) -> _native.PackedWeight:
    """Block by block; then the source is released."""
    n, k = source.shape
    packed = new_packed(source.format, n, k)
    for start, stop in row_blocks(n, k):
        fill_rows(packed, start, source.rows(start, stop))
    source.release()
    return packed


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A matrix that is packed while it is written: no two of them are in memory at a time."""

    source: WeightSource

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def format(self) -> Format:
        return self.source.format

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape

    @property
    def num_bytes(self) -> int:
        return new_packed(self.format, *self.shape).stored_bytes

    def pieces(self) -> Iterator[memoryview]:
        yield from Stored(self.name, self.format, pack(self.source)).pieces()


def new_packed(
    format: Format, n: int, k: int, stored: NDArray[np.uint8] | None = None
) -> _native.PackedWeight:
    """An empty one, or over `stored`."""
    match format:
        case FloatFormat(dtype):
            return _native.PackedWeight(dtype, n, k, stored=stored)
        case ChannelFormat():
            return _native.PackedWeight("channel", n, k, stored=stored)
        case GroupedFormat():
            return _native.PackedWeight(
                f"grouped{format.bits}",
                n,
                k,
                format.group,
                format.scale_dtype == "float16",
                format.has_minimum,
                format.zero,
                stored,
            )


def pack_floats(values: NDArray[np.float32]) -> _native.PackedWeight:
    """A whole matrix, as it is."""
    packed = _native.PackedWeight("float32", *values.shape)
    packed.fill_float(0, np.ascontiguousarray(values))
    return packed


def fill_rows(packed: _native.PackedWeight, row0: int, block: Weight) -> None:
    match block:
        case FloatWeight(_, values):
            packed.fill_float(row0, np.ascontiguousarray(values))
        case ChannelWeight(_, codes, scales):
            packed.fill_channel(row0, np.ascontiguousarray(codes), np.ascontiguousarray(scales))
        case GroupedWeight(_, codes, scales, minima):
            packed.fill_grouped(
                row0,
                np.ascontiguousarray(codes),
                np.ascontiguousarray(scales),
                None if minima is None else np.ascontiguousarray(minima),
            )
