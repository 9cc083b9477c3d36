"""Grids of a few bits: by hand, against compressed-tensors, and where values are extreme.

Owns: `nearest` and the search. May not know: what enters a layer. Read next: `test_compensate.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from firsthand.quant.grid import Grid, nearest


def normal(n: int, k: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.05, (n, k)).astype(np.float32)


def test_a_row_by_hand() -> None:
    """4 symmetric bits: scale 2 · 15 / 15 = 2, so ±15 are codes 15 (cut from 15.5) and 0."""
    rounded = nearest(np.array([[15.0, -15.0, 3.9, 0.0]], np.float32), Grid(4, None, True))
    assert rounded.scales.tolist() == [[2.0]]
    assert rounded.codes.tolist() == [[15, 0, 10, 8]]
    assert rounded.decode().tolist() == [[14.0, -16.0, 4.0, 0.0]]


def test_zeros_by_hand() -> None:
    """From −1 to 2 in 15 steps of 0.2: zero is code 5."""
    rounded = nearest(np.array([[-1.0, 2.0, 0.6]], np.float32), Grid(4, None, False))
    assert rounded.zeros.tolist() == [[5]]
    assert rounded.codes.tolist() == [[0, 15, 8]]


GRIDS = [Grid(b, g, s) for b in (3, 4, 8) for g in (None, 16) for s in (True, False)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("search", [False, True])
def test_quant_1_zeros_stay_zeros(grid: Grid, search: bool) -> None:
    values = normal(4, 32)
    values[1] = 0.0
    values[2, :16] = -0.0
    rounded = nearest(values, grid, search=search)
    assert (rounded.decode()[1] == 0).all()
    assert (rounded.decode()[2, :16] == 0).all()
    alone = nearest(values[[0, 3]], grid, search=search)
    assert np.array_equal(rounded.decode()[[0, 3]], alone.decode())


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_quant_2_tiny_rows_keep_their_ratios(grid: Grid) -> None:
    values = normal(2, 32)
    values[1] = np.linspace(-1e-6, 1e-6, 32)
    rounded = nearest(values, grid)
    assert (rounded.scales > 0).all()
    steps = 1 << grid.bits
    assert np.abs(rounded.decode()[1] - values[1]).max() <= 1.1e-6 * 2 / (steps - 1)


@given(st.integers(0, 2**32 - 1), st.sampled_from(GRIDS))
@settings(max_examples=40, deadline=None)
def test_a_searched_scale_never_loses_more(seed: int, grid: Grid) -> None:
    values = normal(3, 48, seed)
    if grid.group is not None:
        values[:, 5] *= 20
    loss = [
        float(((nearest(values, grid, search=search).decode() - values) ** 2).sum())
        for search in (False, True)
    ]
    assert loss[1] <= loss[0] * (1 + 2e-3)  # scales are stored in float16


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("bits", "symmetric", "group"), [(4, True, 16), (4, False, 16), (3, True, 32)]
)
def test_codes_are_those_of_compressed_tensors(bits: int, symmetric: bool, group: int) -> None:
    torch = pytest.importorskip("torch")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    values = normal(8, 64)
    ours = nearest(values, Grid(bits, group, symmetric))
    args = quantization.QuantizationArgs(
        num_bits=bits, symmetric=symmetric, strategy="group", group_size=group
    )
    zeros: Any = torch.from_numpy(ours.zeros.astype(np.int16) - (1 << bits - 1)).to(torch.int8)
    scales = torch.from_numpy(ours.scales.astype(np.float32))
    weight = torch.from_numpy(values)
    codes = forward.quantize(weight, scales, zeros, args, dtype=torch.int8)
    assert np.array_equal(codes.numpy().astype(np.int16) + (1 << bits - 1), ours.codes)
    again = forward.dequantize(codes, scales, zeros, args).numpy()
    assert np.array_equal(again, ours.decode())


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="a NaN or an infinity"):
        nearest(np.array([[1.0, np.nan]], np.float32), Grid(4, None, True))
