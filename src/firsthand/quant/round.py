"""Floats as integer formats: the only place where a weight loses precision at a load.

Owns: how scales are computed, and how values are rounded to codes.
May not know: files, tensor names, executors.
Read next: `formats.py` (the values), `ggml.py` (what needs no rounding); `grid.py`, the rounding
that `firsthand quantize` writes to a file.
Seen in: `firsthand lab scales-in-the-step`.

    channel     scale = max |x| / 127 over the row;  code = x / scale, rounded half to even
    grouped 8   the same over each group of a row
    grouped 4   minimum = min x, scale = (max x − min x) / 15;  code = (x − minimum) / scale

Rounding half to even is IEEE 754's own. A row of zeros has scale 1 and codes 0. No other scale is
below 2⁻¹²⁶, the smallest normal float32: the kernels treat what is smaller as zero. Codes are
chosen for the scale as it is stored, after its own rounding.

Every scale that Firsthand computes comes from `channel_scales` or `group_scales`. Both run at load
and never in a step; a test that wants to count wraps these two.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from firsthand.quant.formats import (
    ChannelFormat,
    ChannelWeight,
    GroupedFormat,
    GroupedWeight,
)

Floats = NDArray[np.float32]
ScaleType = Literal["float16", "float32"]

# Differences and decoded values then stay within float32; a weight of 10³⁷ is damage anyway.
LARGEST_MAGNITUDE: Final = 2.0**126


def to_channel_int8(values: Floats) -> ChannelWeight:
    """values (N, K). |x − decoded| ≤ scale / 2 for each value of a row."""
    scales = channel_scales(values)
    codes = np.divide(values, scales[:, None])
    np.rint(codes, out=codes)
    # x / (max / 127) may exceed 127 by the roundings of the two divisions only.
    np.clip(codes, -127, 127, out=codes)
    return ChannelWeight(ChannelFormat(), codes.astype(np.int8), scales)


def to_grouped(
    values: Floats, bits: Literal[4, 8], group: int, scale_dtype: ScaleType | None = None
) -> GroupedWeight:
    """values (N, K); the last group of a row may be short.

    Four bits carry a minimum per group, eight bits are symmetric. Without `scale_dtype` it is
    `grouped_scale_dtype`'s answer; a matrix that is rounded in blocks must be asked about whole.
    A group of equal values is exact with float32 scales.
    """
    dtype = scale_dtype or grouped_scale_dtype(values, bits, group)
    exact_scales, exact_minima = group_scales(values, bits, group)
    format = GroupedFormat(bits, group, dtype, has_minimum=bits == 4)
    scales, minima = exact_scales.astype(dtype), exact_minima.astype(dtype)
    # With a scale of zero every code decodes to the minimum, so any divisor will do.
    divisors = np.where(scales > 0, scales, 1).astype(np.float32)
    steps = np.repeat(divisors, group, axis=1)[:, : values.shape[1]]
    if bits == 8:
        codes = np.divide(values, steps)
        np.rint(codes, out=codes)
        np.clip(codes, -127, 127, out=codes)
        return GroupedWeight(format, codes.astype(np.int8), scales, None)
    codes = values - np.repeat(minima.astype(np.float32), group, axis=1)[:, : values.shape[1]]
    codes /= steps
    np.rint(codes, out=codes)
    np.clip(codes, 0, 15, out=codes)
    return GroupedWeight(format, codes.astype(np.uint8), scales, minima)


def grouped_scale_dtype(values: Floats, bits: Literal[4, 8], group: int) -> ScaleType:
    """float16 where storing scale and minimum so moves no value of any group by more than an
    eighth of a step; else float32 (tiny, huge, or far from zero for their spread)."""
    scales, minima = group_scales(values, bits, group)
    with np.errstate(over="ignore"):
        scale_error = np.abs(scales.astype(np.float16).astype(np.float64) - scales)
        minimum_error = np.abs(minima.astype(np.float16).astype(np.float64) - minima)
    largest_code = 15 if bits == 4 else 127
    moved = largest_code * scale_error + minimum_error
    return "float16" if bool((moved <= scales / 8).all()) else "float32"


def channel_scales(values: Floats) -> Floats:
    """(N,) scales of the rows of values (N, K): absmax / 127. ValueError names a row with a
    NaN, an infinity, or a magnitude above `LARGEST_MAGNITUDE`."""
    largest = np.maximum(values.max(axis=1, initial=0.0), -values.min(axis=1, initial=0.0))
    _check_range(largest)
    scales = np.maximum(largest / np.float32(127), np.finfo(np.float32).tiny)
    return np.where(largest > 0, scales, np.float32(1)).astype(np.float32)


def group_scales(values: Floats, bits: Literal[4, 8], group: int) -> tuple[Floats, Floats]:
    """(N, G) scales and minima of the groups of values (N, K), G = ceil(K / group); minima are 0
    for 8 bits. A group of equal values has scale 0 at 4 bits. Errors as `channel_scales`."""
    starts = np.arange(0, values.shape[1], group)
    low = np.minimum.reduceat(values, starts, axis=1)
    high = np.maximum.reduceat(values, starts, axis=1)
    _check_range(np.maximum(high, -low).max(axis=1, initial=0.0))
    tiny = float(np.finfo(np.float32).tiny)
    if bits == 8:
        largest = np.maximum(high, -low)
        scales = np.maximum(largest / np.float32(127), np.float32(tiny))
        return np.where(largest > 0, scales, np.float32(1)), np.zeros_like(scales)
    spread = high.astype(np.float64) - low
    scales = np.where(spread > 0, np.maximum(spread / 15, tiny), 0.0).astype(np.float32)
    return scales, low


def _check_range(largest: Floats) -> None:
    """`largest` (N,) is the largest magnitude of each row; a NaN carries through max."""
    bad = np.flatnonzero(~(largest <= LARGEST_MAGNITUDE))
    if bad.size:
        raise ValueError(f"row {bad[0]} holds a NaN, an infinity, or a magnitude above 2^126")
