"""The layers of a model rounded one after another, while it runs over the calibration text.

Owns: the order of rounding, what shares a Hessian, scaling before rounding, the error of each.
May not know: files, how codes are chosen (`quant/grid.py`, `quant/compensate.py`).
Read next: `forward.py`, which calls `Rounder`; `scaling.py`.
Seen in: `firsthand lab outliers`.

A layer is rounded when its inputs arrive, and gives its outputs as rounded: what comes later makes
up for what came before. Layers behind one norm see the same inputs and are rounded together. An
expert is a layer like any other, of the rows that chose it; one that no row chose is rounded to
the nearest.

Compensation begins with scaling where a scale stands for a whole row: there the columns with large
inputs gain most. In groups the two together lose no less than compensation alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.plan import Op
from firsthand.quant.compensate import compensated, output_error
from firsthand.quant.grid import Grid, Rounded, nearest, stored
from firsthand.quantize.forward import Weights
from firsthand.quantize.scaling import (
    Feeder,
    best_scales,
    feeders,
    followers,
    importance,
    smoothing,
)
from firsthand.quantize.scheme import Scheme
from firsthand.values import dataclass

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerError:
    """`error` is the part of the squared outputs that rounding took away, 0 … 1."""

    name: str
    bits: int
    num_weights: int
    error: float


class Hessians:
    """xᵀx of the inputs that came last: layers that read the same ask one after another."""

    def __init__(self) -> None:
        self._inputs: Floats | None = None
        self._found = np.zeros((0, 0), np.float32)

    def of(self, x: Floats) -> Floats:
        if self._inputs is not x:
            self._inputs, self._found = x, x.T @ x
        return self._found


class Rounder:
    """`Listener` that rounds. `grids` overrides the scheme's grid for single layers; without any
    calibration inputs it can round too (`alone`)."""

    def __init__(
        self, weights: Weights, scheme: Scheme, ops: Sequence[Op], grids: Mapping[str, Grid]
    ) -> None:
        self._weights, self._scheme, self._grids = weights, scheme, grids
        self._behind, self._feeders = followers(ops), feeders(ops)
        self._hessians = Hessians()
        self._decoded: dict[str, Floats] = {}
        self.rounded: dict[str, Rounded] = {}
        self.vectors: dict[str, Floats] = {}  # gains and biases that took the other side of scaling
        self.errors: dict[str, LayerError] = {}

    def normed(self, x: Floats, gain: str) -> Floats:
        names = self._behind.get(gain)
        values = self._weights.vectors[gain]
        inputs = x * values
        if names is None:
            return inputs
        matrices = [self._weights.matrix(name) for name in names]
        hessian = inputs.T @ inputs
        scales = self._scales(inputs, hessian, np.concatenate(matrices), names)
        if scales is not None:
            self.vectors[gain] = values / scales
            inputs = x * self.vectors[gain]
            matrices = [matrix * scales for matrix in matrices]
            hessian /= scales[:, None] * scales
        self._round(names, matrices, hessian)
        return inputs

    def linear(self, x: Floats, weight: str) -> Floats:
        if not len(x):
            self.alone(weight)
            return np.zeros((0, self._weights.shape(weight)[0]), np.float32)
        if weight not in self._decoded:
            self._round_fed(x, weight)
        inputs = as_int8(x) if self._scheme.rounds_activations else x
        return inputs @ self._decoded.pop(weight).T

    def alone(self, name: str, grid: Grid | None = None) -> None:
        """Round a layer that no input is known of: to the nearest."""
        grid = grid or self._grid(name)
        search = self._scheme.method != "nearest"
        self.rounded[name] = nearest(self._weights.matrix(name), grid, search=search)

    def _grid(self, name: str) -> Grid:
        return self._grids.get(name, self._scheme.grid)

    def _round_fed(self, x: Floats, name: str) -> None:
        """A layer behind no norm; what feeds it has been rounded, and takes scales if any."""
        matrix, hessian = self._weights.matrix(name), self._hessians.of(x)
        feeder = self._feeders.get(name)
        if feeder is None or not self._scales_columns(name):
            self._round((name,), [matrix], hessian)
            return
        rows = feeder.rows(matrix.shape[1])
        by_row = best_scales(x, hessian, matrix, self._grid(name), rows)
        scales = by_row[rows]
        self._round((name,), [matrix * scales], hessian / (scales[:, None] * scales))
        self._decoded[name] /= scales
        self._divide(feeder, by_row)

    def _divide(self, feeder: Feeder, by_row: Floats) -> None:
        one = self.rounded[feeder.weight]
        scales = stored(one.scales.astype(np.float32) / by_row[:, None])
        self.rounded[feeder.weight] = replace(one, scales=scales)
        if feeder.bias is not None:
            self.vectors[feeder.bias] = self._weights.vectors[feeder.bias] / by_row

    def _scales(
        self, inputs: Floats, hessian: Floats, matrix: Floats, names: Sequence[str]
    ) -> Floats | None:
        if self._scheme.rounds_activations:
            return smoothing(inputs, matrix, self._scheme.smoothing)
        if not self._scales_columns(names[0]):
            return None
        return best_scales(inputs, hessian, matrix, self._grid(names[0]))

    def _scales_columns(self, name: str) -> bool:
        whole_rows = self._scheme.method == "compensated" and self._grid(name).group is None
        return not self._scheme.rounds_activations and (
            self._scheme.method == "scaled" or whole_rows
        )

    def _round(self, names: Sequence[str], matrices: Sequence[Floats], hessian: Floats) -> None:
        """Layers with the same inputs and the same grid at once: the columns' loop is the cost."""
        by_grid: dict[Grid, list[int]] = {}
        for at, name in enumerate(names):
            by_grid.setdefault(self._grid(name), []).append(at)
        for grid, places in by_grid.items():
            stacked = np.concatenate([matrices[at] for at in places])
            rounded = round_with(stacked, hessian, grid, self._scheme.method)
            start = 0
            for at in places:
                rows = slice(start, start + len(matrices[at]))
                start = rows.stop
                one = Rounded(grid, rounded.codes[rows], rounded.scales[rows], rounded.zeros[rows])
                self.rounded[names[at]] = one
                self._keep(names[at], matrices[at], one, hessian)

    def _keep(self, name: str, matrix: Floats, rounded: Rounded, hessian: Floats) -> None:
        decoded = rounded.decode()
        self._decoded[name] = decoded
        error = relative_error(matrix, decoded, hessian)
        self.errors[name] = LayerError(name, rounded.grid.bits, matrix.size, error)


def round_with(values: Floats, hessian: Floats, grid: Grid, method: str) -> Rounded:
    if method == "compensated":
        return compensated(values, hessian, grid)
    if method == "nearest":
        return nearest(values, grid)
    return nearest(values, grid, importance(hessian), search=True)


def relative_error(matrix: Floats, decoded: Floats, hessian: Floats) -> float:
    whole = output_error(matrix, hessian)
    return output_error(matrix - decoded, hessian) / whole if whole > 0 else 0.0


def as_int8(x: Floats) -> Floats:
    """Rows rounded to 8 bits of their own scale, as other engines run w8a8."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    scale = np.where(largest > 0, largest / np.float32(127), np.float32(1))
    return np.asarray(np.rint(x / scale) * scale, np.float32)
