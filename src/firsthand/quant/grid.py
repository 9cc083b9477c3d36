"""Grids of a few bits: which scale and zero point a group of values gets, and its codes.

Owns: how scales are chosen for a file that we write, and how a value becomes a code.
May not know: files, layers, where the importance of a column comes from.
Read next: `compensate.py` (codes that make up for each other), `round.py` (rounding at a load).

A grid has `bits`, and a scale for each `group` of columns, or for the whole row. Codes are
unsigned, 0 … 2^bits − 1; a value is scale · (code − zero). A symmetric grid has one zero,
2^(bits − 1).

    symmetric   scale = max |x| / (2^bits − 1) · 2; of 8 bits max |x| / 127, and code 0 is not used
    with zeros  scale = (max(x, 0) − min(x, 0)) / (2^bits − 1), zero = −min(x, 0) / scale, rounded

These are the usual choices, and the ones of `nearest`. `searched` tries smaller ranges too, fits
the scale to the codes by least squares, and keeps what has the least squared error, each column
weighted by its importance: the largest value of a group may cost less when it is cut.

Scales are float16 where every one of a matrix is a normal number there, else float32. A group of
zeros has scale 1.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from firsthand.values import dataclass

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

RANGES: Final = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
LEAST_HALF: Final = 2.0**-14
LARGEST_HALF: Final = 65_504.0


@dataclass(frozen=True, slots=True)
class Grid:
    """`group` None: one scale for a row."""

    bits: int
    group: int | None
    symmetric: bool

    @property
    def levels(self) -> int:
        return 1 << self.bits

    @property
    def middle(self) -> int:
        return 1 << self.bits - 1

    @property
    def lowest(self) -> int:
        """The lowest code in use: of 8 symmetric bits −127 has the code 1."""
        return 1 if self.symmetric and self.bits == 8 else 0

    def width(self, k: int) -> int:
        return k if self.group is None else self.group

    def num_groups(self, k: int) -> int:
        return -(-k // self.width(k))

    def bits_per_weight(self, k: int) -> float:
        """With a float16 scale, and a zero of `bits` where there are any."""
        return self.bits + (16 + (0 if self.symmetric else self.bits)) / self.width(k)


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """codes (N, K), scales (N, G) in the type they are stored in, zeros (N, G)."""

    grid: Grid
    codes: Codes
    scales: NDArray[np.float16] | NDArray[np.float32]
    zeros: Codes

    def decode(self) -> Floats:
        k = self.codes.shape[1]
        scales = spread(self.scales, self.grid, k)
        values = self.codes.astype(np.float32) - spread(self.zeros, self.grid, k)
        values *= scales
        return values


def spread(per_group: NDArray[np.float16] | Floats | Codes, grid: Grid, k: int) -> Floats:
    """(N, G) as (N, K)."""
    return np.repeat(per_group.astype(np.float32), grid.width(k), axis=1)[:, :k]


def nearest(
    values: Floats, grid: Grid, importance: Floats | None = None, *, search: bool = False
) -> Rounded:
    """values (N, K) as the nearest codes of their own scales. `importance` (K,) is for the search.

    ValueError for what is not finite.
    """
    if not np.isfinite(values).all():
        raise ValueError("holds a NaN or an infinity")
    scales, zeros = choose(values, grid, importance, search=search)
    return Rounded(grid, codes_of(values, grid, scales, zeros), scales, zeros)


def codes_of(
    values: Floats,
    grid: Grid,
    scales: NDArray[np.float16] | NDArray[np.float32],
    zeros: Codes,
) -> Codes:
    """The nearest codes for given scales and zeros (N, G)."""
    k = values.shape[1]
    steps = values / spread(scales, grid, k)
    np.rint(steps, out=steps)
    steps += spread(zeros, grid, k)
    np.clip(steps, grid.lowest, grid.levels - 1, out=steps)
    return steps.astype(np.uint8)


def choose(
    values: Floats, grid: Grid, importance: Floats | None = None, *, search: bool = False
) -> tuple[NDArray[np.float16] | NDArray[np.float32], Codes]:
    """Scales in the type they are stored in, and zeros, both (N, G)."""
    n, k = values.shape
    width, groups = grid.width(k), grid.num_groups(k)
    padded = values
    if width * groups != k:
        padded = np.pad(values, ((0, 0), (0, width * groups - k)))
    cells = padded.reshape(n, groups, width)
    weights = None
    if importance is not None:
        weights = np.pad(importance, (0, width * groups - k)).reshape(groups, width)
    scales, zeros = _ranged(cells, grid, 1.0)
    if search:
        scales, zeros = _searched(cells, grid, weights, scales, zeros)
    return stored(scales), zeros


def _ranged(cells: Floats, grid: Grid, part: float) -> tuple[Floats, Codes]:
    high, low = cells.max(axis=2, initial=0.0), cells.min(axis=2, initial=0.0)
    if grid.symmetric:
        reach = 127.0 if grid.bits == 8 else (grid.levels - 1) / 2
        scales = np.maximum(high, -low) * np.float32(part / reach)
        zeros = np.full(scales.shape, grid.middle, np.uint8)
        return np.where(scales > 0, scales, 1).astype(np.float32), zeros
    scales = (high - low) * np.float32(part / (grid.levels - 1))
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    zeros = np.clip(np.rint(-low * np.float32(part) / scales), 0, grid.levels - 1)
    return scales, zeros.astype(np.uint8)


def _searched(
    cells: Floats, grid: Grid, weights: Floats | None, scales: Floats, zeros: Codes
) -> tuple[Floats, Codes]:
    best = np.full(scales.shape, np.inf, np.float32)
    found, found_zeros = scales, zeros
    for part in RANGES:
        scales, zeros = _ranged(cells, grid, part)
        steps = np.rint(cells / scales[..., None]) + zeros[..., None]
        np.clip(steps, grid.lowest, grid.levels - 1, out=steps)
        steps -= zeros[..., None]
        weighted = steps if weights is None else steps * weights
        norm = np.einsum("ngk,ngk->ng", weighted, steps)
        fit = np.einsum("ngk,ngk->ng", weighted, cells) / np.where(norm > 0, norm, 1)
        scales = np.where((norm > 0) & (fit > 0), fit, scales)
        errors = steps * scales[..., None] - cells
        errors *= errors
        if weights is not None:
            errors *= weights
        error = errors.sum(axis=2)
        better = error < best
        best = np.where(better, error, best)
        found = np.where(better, scales, found)
        found_zeros = np.where(better, zeros, found_zeros)
    return found, found_zeros


def stored(scales: Floats) -> NDArray[np.float16] | NDArray[np.float32]:
    """In the type in which a file has them."""
    fits = (scales >= LEAST_HALF) & (scales <= LARGEST_HALF)
    if fits.all():
        return scales.astype(np.float16)
    return np.maximum(scales, np.finfo(np.float32).tiny)
