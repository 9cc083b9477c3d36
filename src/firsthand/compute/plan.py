"""A model, recorded: the list of steps that an executor replays, and where their results lie.

Owns: `Step` and `Value`, the recorder (an `Ops` that writes down instead of computing), and the
layout of the scratch memory.
May not know: which steps are fused (`fusion.py`), how a step is computed.
Read next: `fusion.py`, then `native/executor.py`, which hands the steps to C++.

Every value is written once and never changed (single assignment); a step may therefore be moved
up to any place after its inputs. Nothing here depends on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from firsthand.compute.ops import Ops

ROW_ALIGNMENT = 16  # floats: buffers begin on a vector


@dataclass(frozen=True, slots=True)
class Value:
    """The result of a step: `width` floats in each row. Logits have a row per wanted row only."""

    index: int
    width: int
    is_logits: bool = False

    def __str__(self) -> str:
        return "logits" if self.is_logits else f"v{self.index}"


@dataclass(frozen=True, slots=True)
class Step:
    """One operator, or several fused into one.

    `op` is embed, norm, linear, rope, store, attend, activation, add or head. What fusion adds:
    `norm` (gain, eps) is applied to the first input before it is used; `residual` is added to the
    result; `gated` makes of two weights act(x · gateᵀ) · (x · upᵀ); `rotate` applies rope to the
    first input. A linear step may have several weights, and then as many outputs.
    """

    op: str
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
        """Every value that the step reads."""
        return self.inputs if self.residual is None else (*self.inputs, self.residual)

    def __str__(self) -> str:
        result = ", ".join(str(value) for value in self.outputs) or "store"
        parts = [str(value) for value in self.inputs]
        parts += [name.removeprefix("model.").removesuffix(".weight") for name in self.weights]
        notes = []
        if self.norm is not None and self.op != "norm":
            notes.append(f"norm {self.norm[0].removeprefix('model.').removesuffix('.weight')}")
        if self.gated:
            notes.append(f"{self.gated} gate · up")
        if self.residual is not None:
            notes.append(f"+ {self.residual}")
        if self.rotate:
            notes.append("rope")
        if self.layer >= 0:
            notes.append(f"layer {self.layer}")
        tail = f"  [{', '.join(notes)}]" if notes else ""
        return f"{result} = {self.op}({', '.join(parts)}){tail}"


class Recorder:
    """An `Ops[Value]`: each call appends a step. `shape_of` gives a weight's (N, K)."""

    def __init__(self, shape_of: Callable[[str], tuple[int, int]]) -> None:
        self.steps: list[Step] = []
        self._shape_of = shape_of
        self._num_values = 0

    def _value(self, width: int, *, is_logits: bool = False) -> Value:
        self._num_values += 1
        return Value(self._num_values - 1, width, is_logits)

    def embed(self, table: str) -> Value:
        out = self._value(self._shape_of(table)[1])
        self.steps.append(Step("embed", (), (out,), (table,)))
        return out

    def norm(self, x: Value, gain: str, eps: float) -> Value:
        out = self._value(x.width)
        self.steps.append(Step("norm", (x,), (out,), (gain,), norm=(gain, eps)))
        return out

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        out = self._value(self._shape_of(weight)[0])
        self.steps.append(Step("linear", (x,), (out,), (weight,), (bias,)))
        return out

    def rope(self, x: Value, num_heads: int) -> Value:
        out = self._value(x.width)
        self.steps.append(Step("rope", (x,), (out,), num_heads=num_heads))
        return out

    def store(self, layer: int, k: Value, v: Value) -> None:
        self.steps.append(Step("store", (k, v), (), layer=layer))

    def attend(self, layer: int, q: Value, num_heads: int, num_kv_heads: int) -> Value:
        out = self._value(q.width)
        self.steps.append(
            Step(
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
        self.steps.append(Step("activation", (gate, up), (out,), kind=kind))
        return out

    def add(self, x: Value, y: Value) -> Value:
        out = self._value(x.width)
        self.steps.append(Step("add", (x, y), (out,)))
        return out

    def head(self, x: Value, weight: str) -> Value:
        out = self._value(self._shape_of(weight)[0], is_logits=True)
        self.steps.append(Step("head", (x,), (out,), (weight,), (None,)))
        return out


def record(
    forward: Callable[[Ops[Any]], Any], shape_of: Callable[[str], tuple[int, int]]
) -> list[Step]:
    """The steps of a model, in the order in which its text calls them."""
    recorder = Recorder(shape_of)
    forward(recorder)
    return recorder.steps


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each value lies in the scratch memory, in floats; `total` for `max_rows` rows."""

    offsets: dict[Value, int]
    total: int


def lay_out(steps: Sequence[Step], max_rows: int) -> Layout:
    """Give every value a place; values that are never alive together may share one.

    A value lives from the step that writes it to the last step that reads it. The first free
    place that is large enough is taken. Results never overlap what their step reads.
    """
    last_use: dict[Value, int] = {}
    for index, step in enumerate(steps):
        for value in (*step.outputs, *step.reads):
            last_use[value] = index
    offsets: dict[Value, int] = {}
    alive: dict[Value, tuple[int, int]] = {}
    total = 0
    for index, step in enumerate(steps):
        for value in step.outputs:
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
