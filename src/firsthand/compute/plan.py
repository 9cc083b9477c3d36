"""A model, recorded: the list of operators that an executor replays, and where their results lie.

Owns: `Op` and `Value`, the recorder (an `Ops` that writes down instead of computing), and the
layout of the scratch memory.
May not know: which operators are fused (`fusion.py`), how an operator is computed.
Read next: `fusion.py`, then `native/executor.py`, which hands the ops to C++.

Every value is written once and never changed (single assignment); an operator may therefore be
moved up to any place after its inputs. Nothing here depends on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from firsthand.compute.ops import Ops

ROW_ALIGNMENT = 16  # floats: buffers begin on a vector


@dataclass(frozen=True, slots=True)
class Value:
    """The result of an operator: `width` floats a row. Logits have a row per wanted row only."""

    index: int
    width: int
    is_logits: bool = False

    def __str__(self) -> str:
        return "logits" if self.is_logits else f"v{self.index}"


@dataclass(frozen=True, slots=True)
class Op:
    """One operator, or several fused into one.

    `name` is embed, norm, linear, rope, store, attend, activation, add or head. What fusion adds:
    `norm` (gain, eps) is applied to the first input before it is used; `residual` is added to the
    result; `gated` makes of two weights act(x · gateᵀ) · (x · upᵀ); `rotate` applies rope to the
    first input. A linear operator may have several weights, and then as many outputs.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[str, ...] = ()
    biases: tuple[str | None, ...] = ()
    layer: int = -1
    num_heads: int = 0
    num_kv_heads: int = 0
    kind: str = ""
    norm: tuple[str, float] | None = None
    residual: Value | None = None
    gated: str = ""
    rotate: bool = False

    @property
    def reads(self) -> tuple[Value, ...]:
        """Every value that the operator reads."""
        return self.inputs if self.residual is None else (*self.inputs, self.residual)

    def __str__(self) -> str:
        result = ", ".join(str(value) for value in self.outputs) or "store"
        parts = [str(value) for value in self.inputs]
        parts += [name.removesuffix(".weight") for name in self.weights]
        notes = []
        if self.norm is not None:
            notes.append(f"norm {self.norm[0].removesuffix('.weight')}")
        if self.gated:
            notes.append(f"{self.gated} gate · up")
        if self.residual is not None:
            notes.append(f"+ {self.residual}")
        if self.rotate:
            notes.append("rope")
        if self.layer >= 0:
            notes.append(f"layer {self.layer}")
        tail = f"  [{', '.join(notes)}]" if notes else ""
        return f"{result} = {self.name}({', '.join(parts)}){tail}"


class Recorder:
    """An `Ops[Value]`: each call appends an operator. `shape_of` gives a weight's (N, K)."""

    def __init__(self, shape_of: Callable[[str], tuple[int, int]]) -> None:
        self.ops: list[Op] = []
        self._shape_of = shape_of
        self._num_values = 0

    def _value(self, width: int, *, is_logits: bool = False) -> Value:
        self._num_values += 1
        return Value(self._num_values - 1, width, is_logits)

    def embed(self, table: str) -> Value:
        out = self._value(self._shape_of(table)[1])
        self.ops.append(Op("embed", (), (out,), (table,)))
        return out

    def norm(self, x: Value, gain: str, eps: float) -> Value:
        out = self._value(x.width)
        self.ops.append(Op("norm", (x,), (out,), norm=(gain, eps)))
        return out

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        out = self._value(self._shape_of(weight)[0])
        self.ops.append(Op("linear", (x,), (out,), (weight,), (bias,)))
        return out

    def rope(self, x: Value, num_heads: int) -> Value:
        out = self._value(x.width)
        self.ops.append(Op("rope", (x,), (out,), num_heads=num_heads))
        return out

    def store(self, layer: int, k: Value, v: Value) -> None:
        self.ops.append(Op("store", (k, v), (), layer=layer))

    def attend(self, layer: int, q: Value, num_heads: int, num_kv_heads: int) -> Value:
        out = self._value(q.width)
        self.ops.append(
            Op(
                "attend",
                (q,),
                (out,),
                layer=layer,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
            )
        )
        return out

    def activation(self, gate: Value, up: Value, kind: str) -> Value:
        out = self._value(gate.width)
        self.ops.append(Op("activation", (gate, up), (out,), kind=kind))
        return out

    def add(self, x: Value, y: Value) -> Value:
        out = self._value(x.width)
        self.ops.append(Op("add", (x, y), (out,)))
        return out

    def head(self, x: Value, weight: str) -> Value:
        out = self._value(self._shape_of(weight)[0], is_logits=True)
        self.ops.append(Op("head", (x,), (out,), (weight,), (None,)))
        return out


def record(
    forward: Callable[[Ops[Any]], Any], shape_of: Callable[[str], tuple[int, int]]
) -> list[Op]:
    """The ops of a model, in the order in which its text calls them."""
    recorder = Recorder(shape_of)
    forward(recorder)
    return recorder.ops


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each value lies in the scratch memory, in floats; `total` for `max_rows` rows."""

    offsets: dict[Value, int]
    total: int


def lay_out(ops: Sequence[Op], max_rows: int) -> Layout:
    """Give every value a place; values that are never alive together may share one.

    A value lives from the operator that writes it to the last one that reads it. The first free
    place that is large enough is taken. Results never overlap what their operator reads.
    """
    last_use: dict[Value, int] = {}
    for index, op in enumerate(ops):
        for value in (*op.outputs, *op.reads):
            last_use[value] = index
    offsets: dict[Value, int] = {}
    alive: dict[Value, tuple[int, int]] = {}
    total = 0
    for index, op in enumerate(ops):
        for value in op.outputs:
            if value.is_logits:
                continue
            size = -(-value.width * max_rows // ROW_ALIGNMENT) * ROW_ALIGNMENT + ROW_ALIGNMENT
            offset = _first_gap(alive.values(), size)
            alive[value] = (offset, offset + size)
            offsets[value] = offset
            total = max(total, offset + size)
        alive = {value: place for value, place in alive.items() if last_use[value] > index}
    return Layout(offsets, total)


def _first_gap(taken: Iterable[tuple[int, int]], size: int) -> int:
    offset = 0
    for begin, end in sorted(taken):
        if begin - offset >= size:
            break
        offset = max(offset, end)
    return offset
