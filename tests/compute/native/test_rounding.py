"""Activations are rounded as `rows.hpp` says, and a row never by its company.

May not know: models. Read next: `test_kernels.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from firsthand.quant.formats import (
    ChannelFormat,
    ChannelWeight,
    GroupedFormat,
    GroupedWeight,
    Weight,
)
from tests.compute.native.kernel_bench import MAX_ROWS, Bench, Floats, check, normal
from tests.compute.native.micro import FORMATS, instruction_sets, random_weight

pytestmark = pytest.mark.native


def identity(k: int, channel: bool) -> Weight:
    """Ones on the diagonal, through which the rounded row is seen: q · scale."""
    ones = np.eye(k, dtype=np.int8)
    if channel:
        return ChannelWeight(ChannelFormat(), ones, np.ones(k, np.float32))
    format = GroupedFormat(8, 16, "float32", has_minimum=False)
    return GroupedWeight(format, ones, np.ones((k, -(-k // 16)), np.float32), None)


def mean_magnitudes(x: Floats) -> Floats:
    """Summed over 16 lanes, which a tree joins."""
    rows, k = x.shape
    lanes = np.zeros((rows, 16), np.float32)
    for block in np.split(np.pad(np.abs(x), ((0, 0), (0, -k % 16))), -(-k // 16), axis=1):
        lanes = lanes + block
    for width in (8, 4, 2, 1):
        lanes = lanes[:, :width] + lanes[:, width : 2 * width]
    return np.asarray(lanes / np.float32(k), np.float32)


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("channel", [True, False])
@pytest.mark.parametrize("k", [1, 15, 16, 33, 600])
def test_rounding_of_activations(k: int, channel: bool, isa: str) -> None:
    """Bit by bit: one step per row, 15 bits of the largest; for int8 per channel, 8 bits of
    what is usual, and two digits of them beyond."""
    x = normal(6, MAX_ROWS, k) * (10.0 ** np.arange(-8, 9, dtype=np.float32))[:, None]
    x[3] = 0
    x[4, 0] = -2 * np.abs(x[4]).max()
    x[5, -1] = 1000 * np.abs(x[5]).max()  # more than two digits reach, in a long row
    got = Bench(lambda ops, x: ops.linear(x, "w"), x, k, {"w": identity(k, channel)}, isa=isa).run()
    peaks = np.abs(x).max(axis=1, keepdims=True)
    if channel:
        limit, highest = np.float32(127), np.float32(16319)
        usual = np.minimum(np.float32(3) * mean_magnitudes(x), peaks)
        reach = np.maximum(usual, peaks * (limit / highest))
    else:
        limit, highest, reach = np.float32(32767), np.float32(32767), peaks
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.nan_to_num(np.rint(x * (limit / reach)))
    codes = np.clip(codes, -highest, highest)
    assert np.array_equal(got, codes * (reach / limit))
    if channel and k == 600:
        assert codes[5, -1] == 16319
        assert (np.abs(codes) > 127).any(axis=1)[:3].all()
    check(got, x.astype(np.float64), 0.5001 * (reach / limit).astype(np.float64))


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("width", [96, 1000])
def test_high_digits_of_neighbours(width: int, isa: str) -> None:
    """Rows with outliers in different columns: none sees which of them it shares a step with."""
    rng = np.random.default_rng(width)
    x = rng.standard_normal((MAX_ROWS, width)).astype(np.float32)
    outliers = rng.random((MAX_ROWS, width)) < (np.arange(MAX_ROWS) % 5 / 20)[:, None]
    x = np.where(outliers, 40 * x, x)
    weight = random_weight(rng, 70, width, FORMATS["channel"])
    bench = Bench(lambda ops, x: ops.linear(x, "w"), x, 70, {"w": weight}, isa=isa)
    got = bench.run()
    for start in range(MAX_ROWS):
        for stop in (start + 1, start + 2, start + 5, MAX_ROWS):
            if stop <= MAX_ROWS:
                assert bench.run(start, stop).tobytes() == got[start:stop].tobytes()
