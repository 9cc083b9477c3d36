"""Compensation: by hand, and never worse than the nearest codes where it counts.

Owns: `compensated`. May not know: models. Read next: `tests/quantize/test_quantize.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.quant.compensate import (
    DAMPING,
    compensated,
    inverse_factor,
    output_error,
    refitted,
)
from firsthand.quant.grid import Grid, nearest

Floats = NDArray[np.float32]


def inputs(t: int, k: int, seed: int) -> Floats:
    """Columns that say much the same, of very different size."""
    draw = np.random.default_rng(seed)
    mixed = draw.normal(0, 1, (t, k // 4)) @ draw.normal(0, 1, (k // 4, k))
    mixed += 0.1 * draw.normal(0, 1, (t, k))
    return (mixed * draw.uniform(0.1, 3, k)).astype(np.float32)


def test_two_equal_inputs_by_hand() -> None:
    """x₁ = x₂ always, so only the sum of both weights matters: what the first loses by rounding to
    1 (0.4), the second gets, and 0.4 + 0.4 rounds to 1 where 0.4 alone would be 0."""
    hessian = np.full((2, 2), 100.0, np.float32)
    values = np.array([[1.4, 0.4, -8.0, 7.0]], np.float32)
    whole = np.diag([100.0, 100.0, 1e-3, 1e-3]).astype(np.float32)
    whole[:2, :2] = hessian
    grid = Grid(4, None, True)
    codes = compensated(values, whole, grid).decode()
    plain = nearest(values, grid).decode()
    assert abs(codes[0, :2].sum() - 1.8) < abs(plain[0, :2].sum() - 1.8)


def test_the_factor_is_that_of_the_inverse() -> None:
    hessian = (lambda x: x.T @ x)(inputs(200, 16, 0))
    upper = inverse_factor(hessian).astype(np.float64)
    assert np.allclose(upper, np.triu(upper))
    damped = hessian + 0.1 * np.diag(np.diag(hessian))
    assert np.allclose(upper.T @ upper @ damped, np.eye(16), atol=1e-3)


@pytest.mark.parametrize(
    "grid", [Grid(3, None, True), Grid(4, 16, True), Grid(4, 32, False)], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_outputs_lose_less_than_by_the_nearest_codes(grid: Grid, seed: int) -> None:
    x = inputs(400, 96, seed)
    values = np.random.default_rng(seed).normal(0, 0.05, (24, 96)).astype(np.float32)
    hessian = x.T @ x
    ours = output_error(values - compensated(values, hessian, grid).decode(), hessian)
    plain = output_error(values - nearest(values, grid).decode(), hessian)
    assert ours < 0.7 * plain


@pytest.mark.parametrize("grid", [Grid(3, 16, True), Grid(4, 32, False)], ids=str)
def test_scales_that_suit_the_codes_lose_less_and_move_no_code(grid: Grid) -> None:
    x = inputs(400, 96, 3)
    values = np.random.default_rng(3).normal(0, 0.05, (24, 96)).astype(np.float32)
    hessian = x.T @ x
    damped = hessian + np.diag(DAMPING * np.diag(hessian))
    before = nearest(values, grid)
    after = refitted(values, hessian, before)
    assert (after.codes == before.codes).all() and after.scales.dtype == before.scales.dtype
    lost = [
        np.einsum("nk,kl,nl->n", away, damped, away)
        for away in (values - one.decode() for one in (before, after))
    ]
    assert (lost[1] <= lost[0] * 1.0001).all() and lost[1].sum() < 0.95 * lost[0].sum()


def test_inputs_that_never_came_are_no_trouble() -> None:
    """Columns 3 to 7 are always 0, and there are fewer rows than columns."""
    x = inputs(10, 32, 1)
    x[:, 3:8] = 0
    values = np.random.default_rng(0).normal(0, 0.05, (4, 32)).astype(np.float32)
    rounded = compensated(values, x.T @ x, Grid(4, 16, True))
    assert np.isfinite(rounded.decode()).all()
    assert np.abs(rounded.decode()[:, 3:8] - values[:, 3:8]).max() <= rounded.scales.max() / 1.9


def test_no_inputs_at_all() -> None:
    values = np.random.default_rng(0).normal(0, 0.05, (4, 16)).astype(np.float32)
    nothing = np.zeros((16, 16), np.float32)
    grid = Grid(8, None, True)
    assert np.abs(compensated(values, nothing, grid).decode() - values).max() < 0.002
