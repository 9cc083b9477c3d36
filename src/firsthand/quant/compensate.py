"""Rounding with compensation: what one column loses, the columns after it make up for.

Owns: the order of columns, the factor of the inverse Hessian, and the loop.
May not know: layers, files, where the inputs came from.
Read next: `grid.py` (scales and codes). Source: arXiv 2210.17323, algorithm 1.

For a linear layer with inputs X (T, K) the squared error of the outputs is tr(D · H · Dᵀ), D what
was rounded away and H = XᵀX. Column after column is rounded; the error of each, divided by its
diagonal entry of the Cholesky factor of H⁻¹, is subtracted from the columns that are still floats.
Columns with the largest inputs come first, while there are still many to make up for them; scales
are chosen before, so that groups stay runs of columns and no file needs an order. Then each group
gets the scale that suits the codes it has got: in groups of 32 another 6 % less is lost.

H is damped by a part of each diagonal entry: what columns seem to have in common is taken as a
little less than the calibration text says. A part of the mean of them all, which is usual, is
almost the largest column's alone in a model with outliers, and next to nothing to the others; on
other text than that of the calibration the outputs of SmolLM2 then lose 6 % more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from firsthand.quant.grid import Grid, Rounded, choose

Floats = NDArray[np.float32]
DAMPING: Final = 0.1  # of each entry of the diagonal
LEAST_IMPORTANCE: Final = 0.01  # of the mean of the diagonal, where scales are chosen
BLOCK: Final = 64
SWEEPS: Final = 2


def compensated(values: Floats, hessian: Floats, grid: Grid) -> Rounded:
    """values (N, K), hessian (K, K) = XᵀX. A column that no input ever reached is rounded to the
    nearest and changes nothing."""
    n, k = values.shape
    diagonal = np.array(np.diag(hessian), np.float32)
    scales, zeros = choose(values, grid, diagonal + diagonal.mean() * LEAST_IMPORTANCE, search=True)
    order = np.argsort(-diagonal, kind="stable")
    factor = inverse_factor(hessian[np.ix_(order, order)])
    groups = order // grid.width(k)
    steps, middles = scales.astype(np.float32).T.copy(), zeros.astype(np.float32).T.copy()
    left = np.ascontiguousarray(values[:, order].T)
    codes = np.empty((k, n), np.uint8)
    for start in range(0, k, BLOCK):
        stop = min(start + BLOCK, k)
        lost = np.empty((stop - start, n), np.float32)
        for j in range(start, stop):
            scale, zero = steps[groups[j]], middles[groups[j]]
            code = np.rint(left[j] / scale) + zero
            np.clip(code, grid.lowest, grid.levels - 1, out=code)
            codes[order[j]] = code
            error = (left[j] - (code - zero) * scale) / factor[j, j]
            left[j + 1 : stop] -= factor[j, j + 1 : stop, None] * error
            lost[j - start] = error
        left[stop:] -= factor[start:stop, stop:].T @ lost
    rounded = Rounded(grid, np.ascontiguousarray(codes.T), scales, zeros)
    return rounded if grid.group is None else refitted(values, hessian, rounded)


def refitted(values: Floats, hessian: Floats, rounded: Rounded) -> Rounded:
    """The same codes with better scales: one group after another gets the scale of the least
    squared error of the outputs, as the other groups are by then."""
    damped = hessian + np.diag(DAMPING * np.diag(hessian))
    width = rounded.grid.width(values.shape[1])
    scales = rounded.scales.copy()
    left = values - rounded.decode()
    for _ in range(SWEEPS):
        for g in range(scales.shape[1]):
            here = slice(g * width, (g + 1) * width)
            codes = rounded.codes[:, here].astype(np.float32) - rounded.zeros[:, g, None]
            ask = np.einsum("nk,nk->n", left @ damped[:, here], codes)
            cost = np.einsum("nk,nk->n", codes @ damped[here, here], codes)
            before = scales[:, g].astype(np.float32)
            wanted = before + ask / np.where(cost > 0, cost, np.inf)
            better = (wanted > before / 2) & (wanted < before * 2)
            scales[better, g] = wanted[better]
            left[:, here] -= codes * (scales[:, g].astype(np.float32) - before)[:, None]
    return replace(rounded, scales=scales)


def inverse_factor(hessian: Floats) -> Floats:
    """(K, K) upper U with UᵀU = (H + damping)⁻¹. What a singular H needs is added."""
    exact = hessian.astype(np.float64)
    diagonal = np.diag(exact).copy()
    diagonal[diagonal <= 0] = float(diagonal.mean()) or 1.0
    np.fill_diagonal(exact, diagonal)
    damping = DAMPING
    while True:
        try:
            damped = exact + np.diag(damping * diagonal)
            return np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
        except np.linalg.LinAlgError:
            damping *= 10


def output_error(rounded_away: Floats, hessian: Floats) -> float:
    """tr(D · H · Dᵀ): the squared error of the outputs, D (N, K) what was rounded away."""
    return float(np.einsum("nk,nk->", rounded_away @ hessian, rounded_away, dtype=np.float64))
