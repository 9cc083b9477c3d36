"""Which layers stay wide: measured for each, chosen under a budget.

Owns: what a layer loses at two widths, and who gets the bits that are left.
May not know: files, how codes are chosen.
Read next: `rounding.py`.

Each layer is rounded twice, narrow and wide, and its error measured on the inputs that it gets in
the model as it was. Layers that read the same are widened together, and so are the experts of one
layer: many engines compute them as one. The worth of such a unit is the error that widening takes
away for each bit that it costs; units of most worth are widened, as long as the budget lasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from firsthand.quant.grid import Grid
from firsthand.quantize.forward import Weights
from firsthand.quantize.rounding import Hessians, relative_error, round_with
from firsthand.quantize.scheme import Scheme
from firsthand.values import dataclass

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The error of a layer's outputs, narrow and wide, and its shape."""

    narrow: float
    wide: float
    shape: tuple[int, int]

    @property
    def num_weights(self) -> int:
        return self.shape[0] * self.shape[1]


class Measurer:
    """`Listener` that measures and changes nothing."""

    def __init__(self, weights: Weights, scheme: Scheme) -> None:
        self._weights, self._scheme = weights, scheme
        self._hessians = Hessians()
        self.found: dict[str, Sensitivity] = {}

    def normed(self, x: Floats, gain: str) -> Floats:
        return x * self._weights.vectors[gain]

    def linear(self, x: Floats, weight: str) -> Floats:
        matrix, hessian = self._weights.matrix(weight), self._hessians.of(x)
        errors = []
        for grid in (self._scheme.grid, self._scheme.wide_grid):
            method = "nearest" if self._scheme.method == "nearest" else "searched"
            rounded = round_with(matrix, hessian, grid, method)
            errors.append(relative_error(matrix, rounded.decode(), hessian))
        n, k = matrix.shape
        self.found[weight] = Sensitivity(errors[0], errors[1], (n, k))
        return x @ matrix.T


def widened(
    found: Mapping[str, Sensitivity], scheme: Scheme, units: Sequence[Sequence[str]]
) -> Mapping[str, Grid]:
    """The layers that get the wide grid."""
    total = sum(layer.num_weights for layer in found.values())
    used = sum(_bits(layer, scheme.grid) for layer in found.values())
    left = (scheme.budget or 0.0) * total - used
    chosen: dict[str, Grid] = {}
    for unit in sorted(units, key=lambda names: -_worth([found[n] for n in names], scheme)):
        cost = _cost([found[name] for name in unit], scheme)
        if cost <= left:
            left -= cost
            chosen |= dict.fromkeys(unit, scheme.wide_grid)
    return chosen


def _bits(layer: Sensitivity, grid: Grid) -> float:
    return layer.num_weights * grid.bits_per_weight(layer.shape[1])


def _cost(unit: Sequence[Sensitivity], scheme: Scheme) -> float:
    return sum(_bits(layer, scheme.wide_grid) - _bits(layer, scheme.grid) for layer in unit)


def _worth(unit: Sequence[Sensitivity], scheme: Scheme) -> float:
    return sum(layer.narrow - layer.wide for layer in unit) / _cost(unit, scheme)
