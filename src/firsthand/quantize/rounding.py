"""The layers of a model rounded one after another, while it runs over the calibration text.

Owns: which layers share their inputs, scaling and smoothing before rounding, the error of each.
May not know: files, how codes are chosen (`quant/grid.py`, `quant/compensate.py`).
Read next: `forward.py`, which calls `Rounder`.

A layer is rounded when its inputs arrive, and gives its outputs as rounded: what comes later makes
up for what came before. Layers behind one norm see the same inputs and are rounded together.

- Scaling (AWQ, arXiv 2306.00978, section 3.2): column k of the weights is multiplied by s[k] and
  the norm's gain divided by it, which changes nothing but the rounding. s = m^α over its geometric
  mean, m the mean size of input k; of 11 values of α the one whose outputs lose least is taken.
  Compensation begins with it where a scale stands for a whole row: there the columns with large
  inputs gain most. In groups the two together lose no less than compensation alone.
- Smoothing (arXiv 2211.10438, equation 4): the same with s = max |x|^α / max |w|^(1 − α), so that
  activations of 8 bits have no outliers.

Both need a norm before the layer; the layers behind attention and activation are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.plan import Op
from firsthand.quant.compensate import compensated, output_error
from firsthand.quant.grid import Grid, Rounded, nearest
from firsthand.quantize.forward import Weights
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


def followers(ops: Sequence[Op]) -> dict[str, tuple[str, ...]]:
    """The linear layers behind each norm that nothing else reads, by the name of its gain."""
    found: dict[str, tuple[str, ...]] = {}
    for op in ops:
        if op.name == "norm" and op.norm is not None:
            readers = [other for other in ops if op.outputs[0] in other.reads]
            if readers and all(reader.name == "linear" for reader in readers):
                found[op.norm[0]] = tuple(reader.weights[0] for reader in readers)
    return found


class Rounder:
    """`Listener` that rounds. `grids` overrides the scheme's grid for single layers; without any
    calibration inputs it can round too (`alone`)."""

    def __init__(
        self,
        weights: Weights,
        scheme: Scheme,
        behind: Mapping[str, tuple[str, ...]],
        grids: Mapping[str, Grid],
    ) -> None:
        self._weights, self._scheme, self._behind, self._grids = weights, scheme, behind, grids
        self._decoded: dict[str, Floats] = {}
        self.rounded: dict[str, Rounded] = {}
        self.gains: dict[str, Floats] = {}
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
            self.gains[gain] = values / scales
            inputs = x * self.gains[gain]
            matrices = [matrix * scales for matrix in matrices]
            hessian /= scales[:, None] * scales
        self._round(names, matrices, hessian)
        return inputs

    def linear(self, x: Floats, weight: str) -> Floats:
        if weight not in self._decoded:
            self._round((weight,), [self._weights.matrix(weight)], x.T @ x)
        inputs = as_int8(x) if self._scheme.rounds_activations else x
        return inputs @ self._decoded.pop(weight).T

    def alone(self, name: str) -> None:
        """Round a layer that no input is known of: to the nearest."""
        grid = self._grids.get(name, self._scheme.grid)
        search = self._scheme.method != "nearest"
        self.rounded[name] = nearest(self._weights.matrix(name), grid, search=search)

    def _scales(
        self, inputs: Floats, hessian: Floats, matrix: Floats, names: Sequence[str]
    ) -> Floats | None:
        if self._scheme.rounds_activations:
            return smoothing(inputs, matrix, self._scheme.smoothing)
        grid = self._grids.get(names[0], self._scheme.grid)
        whole_rows = self._scheme.method == "compensated" and grid.group is None
        if self._scheme.method != "scaled" and not whole_rows:
            return None
        return best_scales(inputs, hessian, matrix, grid)

    def _round(self, names: Sequence[str], matrices: Sequence[Floats], hessian: Floats) -> None:
        """Layers with the same inputs and the same grid at once: the columns' loop is the cost."""
        by_grid: dict[Grid, list[int]] = {}
        for at, name in enumerate(names):
            by_grid.setdefault(self._grids.get(name, self._scheme.grid), []).append(at)
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
    return nearest(values, grid, _importance(hessian), search=True)


def relative_error(matrix: Floats, decoded: Floats, hessian: Floats) -> float:
    whole = output_error(matrix, hessian)
    return output_error(matrix - decoded, hessian) / whole if whole > 0 else 0.0


def best_scales(inputs: Floats, hessian: Floats, matrix: Floats, grid: Grid) -> Floats:
    """(K,) s of the least error of the outputs; ones are among the candidates."""
    size = np.maximum(np.abs(inputs).mean(axis=0), np.float32(1e-8))
    best, found = np.inf, np.ones_like(size)
    for tenth in range(11):
        scales = size ** np.float32(tenth / 10)
        scales /= np.exp(np.log(scales).mean())
        inverse: Floats = hessian / (scales[:, None] * scales)
        decoded = nearest(matrix * scales, grid, _importance(inverse), search=False).decode()
        error = output_error(decoded / scales - matrix, hessian)
        if error < best:
            best, found = error, np.asarray(scales, np.float32)
    return np.asarray(found, np.float32)


def smoothing(inputs: Floats, matrix: Floats, strength: float) -> Floats:
    """(K,) s = max |x|^α / max |w|^(1 − α)."""
    reach = np.maximum(np.abs(inputs).max(axis=0), np.float32(1e-5))
    weight = np.maximum(np.abs(matrix).max(axis=0), np.float32(1e-5))
    scales = reach ** np.float32(strength) / weight ** np.float32(1 - strength)
    return np.asarray(np.maximum(scales, np.float32(1e-5)), np.float32)


def as_int8(x: Floats) -> Floats:
    """Rows rounded to 8 bits of their own scale, as other engines run w8a8."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    scale = np.where(largest > 0, largest / np.float32(127), np.float32(1))
    return np.asarray(np.rint(x / scale) * scale, np.float32)


def _importance(hessian: Floats) -> Floats:
    diagonal = np.array(np.diag(hessian), np.float32)
    return np.asarray(diagonal + diagonal.mean() * np.float32(0.01), np.float32)
