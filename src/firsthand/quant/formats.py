"""Number formats: what a weight is, as a value that knows its own format.

Owns: the formats and the values that carry them. A weight is (N, K): N outputs, K inputs.
May not know: files, tensor names, layers, executors.
Read next: `ggml.py` (blocks of a GGUF file as these values), `round.py` (floats as these values).

There are three kinds of format:

    float      value = x                                    float32, float16 or bfloat16
    channel    value = scale[n] · code[n, k]                int8 codes, one scale per output
    grouped    value = scale[n, g] · (code[n, k] − zero) + minimum[n, g],   g = k // group
               4-bit codes 0…15, or signed 8-bit codes; minimum is optional

Decoding is float32: the product is rounded once, then the minimum is added and rounded once, as
the `gguf` library does; for the formats that GGUF has, that is bit for bit what it gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from firsthand.values import dataclass

FloatType = Literal["float32", "float16", "bfloat16"]

BLOCK_BYTES: Final = 2 << 20  # a few arrays of this size still fit a core's cache


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Floats as they are; bfloat16 is carried as uint16 (the upper half of a float32)."""

    dtype: FloatType

    def __str__(self) -> str:
        return self.dtype

    def num_bytes(self, n: int, k: int) -> int:
        return n * k * (4 if self.dtype == "float32" else 2)


@dataclass(frozen=True, slots=True)
class ChannelFormat:
    """int8, one float32 scale per output channel (row). The scale is absmax / 127."""

    def __str__(self) -> str:
        return "int8/channel"

    def num_bytes(self, n: int, k: int) -> int:
        return n * k + 4 * n


@dataclass(frozen=True, slots=True)
class GroupedFormat:
    """Codes of `bits` in groups of `group` along K. `zero` is one constant for the format."""

    bits: Literal[4, 8]
    group: int
    scale_dtype: Literal["float16", "float32"]
    has_minimum: bool
    zero: int = 0

    def __str__(self) -> str:
        tail = "+min" if self.has_minimum else ""
        return f"int{self.bits}/{self.group}{tail}"

    def num_bytes(self, n: int, k: int) -> int:
        groups = -(-k // self.group)
        scale = 2 if self.scale_dtype == "float16" else 4
        codes = n * groups * self.group * self.bits // 8
        return codes + n * groups * scale * (2 if self.has_minimum else 1)


Format = FloatFormat | ChannelFormat | GroupedFormat


@dataclass(frozen=True, slots=True, eq=False)
class FloatWeight:
    """values (N, K) in float32, float16, or uint16 for bfloat16."""

    format: FloatFormat
    values: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelWeight:
    """codes (N, K) int8, scales (N,) float32, every scale finite and above 0."""

    format: ChannelFormat
    codes: NDArray[np.int8]
    scales: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class GroupedWeight:
    """codes (N, K) one per byte: uint8 0…15 for 4 bits, int8 for 8 bits; scales and minima
    (N, ceil(K / group)) in the format's scale type. The last group may be short."""

    format: GroupedFormat
    codes: NDArray[np.uint8] | NDArray[np.int8]
    scales: NDArray[np.float16] | NDArray[np.float32]
    minima: NDArray[np.float16] | NDArray[np.float32] | None


Weight = FloatWeight | ChannelWeight | GroupedWeight


class WeightSource(Protocol):
    """A weight that can be read in blocks of rows, so that two copies never exist at once.

    `rows(a, b)` gives rows a…b−1 as a value of `format`; blocks are independent of each other
    and may be asked for in any order. The value may alias the file's memory map: copy it before
    `release()`, which gives the pages back to the operating system.
    """

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def format(self) -> Format: ...
    def rows(self, start: int, stop: int) -> Weight: ...
    def release(self) -> None: ...


def row_blocks(n: int, k: int) -> Iterator[tuple[int, int]]:
    """Cut n rows of k values into runs of at most `BLOCK_BYTES` when decoded, at least one row
    each: what anyone who walks over a weight should hold at a time."""
    step = max(1, BLOCK_BYTES // (4 * k))
    for start in range(0, n, step):
        yield start, min(start + step, n)


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest, ties to even. Finite values only."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    even = bits >> np.uint32(16) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)


def bfloat16_to_float32(raw: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Exact: a bfloat16 is the upper half of a float32."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


def decode(weight: Weight) -> NDArray[np.float32]:
    """The float32 values (N, K) that a weight stands for: the formula of each format."""
    match weight:
        case FloatWeight(format, values):
            if format.dtype == "bfloat16":
                return bfloat16_to_float32(values.view(np.uint16))
            return values.astype(np.float32)
        case ChannelWeight(_, codes, scales):
            return codes.astype(np.float32) * scales[:, None]
        case GroupedWeight(format, codes, scales, minima):
            k = codes.shape[1]
            decoded = codes.astype(np.float32)
            if format.zero:
                decoded -= np.float32(format.zero)
            decoded *= _spread(scales, format.group, k)
            if minima is not None:
                decoded += _spread(minima, format.group, k)
            return decoded


def _spread(
    per_group: NDArray[np.float16] | NDArray[np.float32], group: int, k: int
) -> NDArray[np.float32]:
    """One value per group (N, G) as one per element (N, K)."""
    return np.repeat(per_group.astype(np.float32), group, axis=1)[:, :k]
