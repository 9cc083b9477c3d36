"""Columns made larger before they are rounded, and who takes the other side.

Owns: which layers read what a norm or another layer makes, and by how much columns are multiplied.
May not know: how codes are chosen, files.
Read next: `rounding.py`, the user.

Column k of the weights is multiplied by s[k], and what makes its input is divided by it: nothing
changes but the rounding. What makes an input is one of these.

- A norm: its gain is divided. All layers behind it have the same s.
- `up` before an activation, act(gate) · up: its row k is divided. Where it has been rounded already
  its scales are, so that no code moves; s is then a power of two, and no value does either.
- `v` before attention, whose outputs are sums of its rows: the same, with one s for all columns
  that read one row, since several heads share it.

- Scaling (AWQ, arXiv 2306.00978, section 3.2): s = m^α over its geometric mean, m the mean size of
  an input; of 11 values of α the one whose outputs lose least is taken.
- Smoothing (arXiv 2211.10438, equation 4): s = max |x|^α / max |w|^(1 − α), so that activations of
  8 bits have no outliers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.plan import Op, Value
from firsthand.quant.compensate import output_error
from firsthand.quant.grid import Grid, nearest
from firsthand.values import dataclass

Floats = NDArray[np.float32]
FURTHEST = np.float32(6)  # powers of two: what a rare text makes large is then still a float16


@dataclass(frozen=True, slots=True)
class Feeder:
    """The layer whose rows the columns of another read. `heads` (H, G): through attention."""

    weight: str
    bias: str | None = None
    heads: tuple[int, int] | None = None

    def rows(self, k: int) -> NDArray[np.intp]:
        """(K,) the row that each column reads."""
        columns = np.arange(k)
        if self.heads is None:
            return columns
        num_heads, num_kv_heads = self.heads
        size = k // num_heads
        return columns // size // (num_heads // num_kv_heads) * size + columns % size


def followers(ops: Sequence[Op]) -> dict[str, tuple[str, ...]]:
    """The linear layers behind each norm that nothing else reads, by the name of its gain."""
    found: dict[str, tuple[str, ...]] = {}
    for op in ops:
        if op.name == "norm" and op.norm is not None:
            readers = [other for other in ops if op.outputs[0] in other.reads]
            if readers and all(reader.name == "linear" for reader in readers):
                found[op.norm[0]] = tuple(reader.weights[0] for reader in readers)
    return found


def feeders(ops: Sequence[Op]) -> dict[str, Feeder]:
    """The feeder of each layer that has one, read by nobody else."""
    made = {value: op for op in ops for value in op.outputs}
    times = Counter(value for op in ops for value in op.reads)
    stored = {op.layer: op.inputs[1] for op in ops if op.name == "store"}
    found: dict[str, Feeder] = {}
    for op in ops:
        if op.name == "experts":
            for up, down in zip(op.weights[1::3], op.weights[2::3], strict=True):
                found[down] = Feeder(up)
        elif op.name == "linear" and times[op.inputs[0]] == 1 and op.inputs[0] in made:
            value, heads = _read_through(made[op.inputs[0]], stored)
            maker = made.get(value) if value is not None and times[value] == 1 else None
            if maker is not None and maker.name == "linear":
                found[op.weights[0]] = Feeder(maker.weights[0], maker.biases[0], heads)
    return found


def _read_through(
    op: Op, stored: Mapping[int, Value]
) -> tuple[Value | None, tuple[int, int] | None]:
    """What an operator passes on, each part multiplied by something that does not depend on it."""
    if op.name == "activation":
        return op.inputs[1], None
    if op.name == "attend":
        return stored[op.layer], (op.num_heads, op.num_kv_heads)
    return None, None


def best_scales(
    inputs: Floats,
    hessian: Floats,
    matrix: Floats,
    grid: Grid,
    rows: NDArray[np.intp] | None = None,
) -> Floats:
    """s of the least error of the outputs, (K,); ones are among the candidates. With `rows` (K,)
    one for each row of a feeder, a power of two."""
    size = np.abs(inputs).mean(axis=0)
    if rows is not None:
        size = np.bincount(rows, size) / np.bincount(rows)
    size = np.maximum(size, 1e-8).astype(np.float32)
    best, found = np.inf, np.ones_like(size)
    for tenth in range(11):
        scales = size ** np.float32(tenth / 10)
        scales /= np.exp(np.log(scales).mean())
        if rows is not None:
            scales = np.exp2(np.clip(np.rint(np.log2(scales)), -FURTHEST, FURTHEST))
        columns = scales if rows is None else scales[rows]
        inverse: Floats = hessian / (columns[:, None] * columns)
        decoded = nearest(matrix * columns, grid, importance(inverse), search=False).decode()
        error = output_error(decoded / columns - matrix, hessian)
        if error < best:
            best, found = error, np.asarray(scales, np.float32)
    return np.asarray(found, np.float32)


def smoothing(inputs: Floats, matrix: Floats, strength: float) -> Floats:
    """(K,) s = max |x|^α / max |w|^(1 − α)."""
    reach = np.maximum(np.abs(inputs).max(axis=0), np.float32(1e-5))
    weight = np.maximum(np.abs(matrix).max(axis=0), np.float32(1e-5))
    scales = reach ** np.float32(strength) / weight ** np.float32(1 - strength)
    return np.asarray(np.maximum(scales, np.float32(1e-5)), np.float32)


def importance(hessian: Floats) -> Floats:
    """(K,) of each column, where scales are chosen."""
    diagonal = np.array(np.diag(hessian), np.float32)
    return np.asarray(diagonal + diagonal.mean() * np.float32(0.01), np.float32)
