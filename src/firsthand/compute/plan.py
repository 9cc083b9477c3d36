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
from typing import Any

from firsthand.compute.ops import (
    PLAIN_ATTENTION,
    AttentionRule,
    ExpertWeights,
    Ops,
    RoutingRule,
)
from firsthand.values import dataclass

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

    `name` is that of the method of `Ops`, or one of `stages.py`, and the fields are its arguments:
    `factor` is the scale of an embedding or the cap of a head (0: none); the weights of experts
    are gate, up and down of each in turn. What fusion adds: `norm` (gain, eps) of other operators
    is applied to the first input before it is used; `residual` is added to the result; `gated`
    makes of two weights act(x · gateᵀ) · (x · upᵀ); `rotate` applies rope by `table` to the first
    input. A linear operator may have several weights, and then as many outputs.
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
    table: int = 0
    factor: float = 0.0
    rule: AttentionRule = PLAIN_ATTENTION
    routing: RoutingRule | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        """Every value that the operator reads."""
        return self.inputs if self.residual is None else (*self.inputs, self.residual)

    def __str__(self) -> str:
        result = ", ".join(str(value) for value in self.outputs) or self.name
        parts = [str(value) for value in self.inputs]
        parts += _shown(self.weights)
        notes = [text for text in (str(self.rule),) if text]
        if self.factor not in (0.0, 1.0):
            notes.append(f"{'cap' if self.name == 'head' else 'times'} {self.factor:g}")
        if self.routing is not None:
            notes.append(f"{self.routing.top_k} of {self.inputs[0].width}")
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


def _shown(weights: Sequence[str]) -> list[str]:
    """Their names; of many experts the first and the last."""
    names = [name.removesuffix(".weight") for name in weights]
    return names if len(names) <= 6 else [*names[:3], "…", names[-1]]


class Recorder:
    """An `Ops[Value]`: each call appends an operator. `shape_of` gives a weight's (N, K)."""

    def __init__(self, shape_of: Callable[[str], tuple[int, int]]) -> None:
        self.ops: list[Op] = []
        self._shape_of = shape_of
        self._num_values = 0

    def _value(self, width: int, *, is_logits: bool = False) -> Value:
        self._num_values += 1
        return Value(self._num_values - 1, width, is_logits)

    def embed(self, table: str, scale: float = 1.0) -> Value:
        out = self._value(self._shape_of(table)[1])
        self.ops.append(Op("embed", (), (out,), (table,), factor=scale))
        return out

    def norm(self, x: Value, gain: str, eps: float, num_heads: int = 1) -> Value:
        out = self._value(x.width)
        self.ops.append(Op("norm", (x,), (out,), norm=(gain, eps), num_heads=num_heads))
        return out

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        out = self._value(self._shape_of(weight)[0])
        self.ops.append(Op("linear", (x,), (out,), (weight,), (bias,)))
        return out

    def rope(self, x: Value, num_heads: int, table: int = 0) -> Value:
        out = self._value(x.width)
        self.ops.append(Op("rope", (x,), (out,), num_heads=num_heads, table=table))
        return out

    def store(self, layer: int, k: Value, v: Value) -> None:
        self.ops.append(Op("store", (k, v), (), layer=layer))

    def attend(
        self,
        layer: int,
        q: Value,
        num_heads: int,
        num_kv_heads: int,
        rule: AttentionRule = PLAIN_ATTENTION,
    ) -> Value:
        out = self._value(q.width)
        self.ops.append(
            Op(
                "attend",
                (q,),
                (out,),
                layer=layer,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                rule=rule,
            )
        )
        return out

    def route(self, logits: Value, rule: RoutingRule, shared: Value | None = None) -> Value:
        inputs = (logits,) if shared is None else (logits, shared)
        out = self._value(logits.width + len(inputs) - 1)
        self.ops.append(Op("route", inputs, (out,), routing=rule))
        return out

    def experts(
        self, x: Value, weights: Value, experts: Sequence[ExpertWeights], kind: str
    ) -> Value:
        out = self._value(x.width)
        names = tuple(name for each in experts for name in (each.gate, each.up, each.down))
        self.ops.append(Op("experts", (x, weights), (out,), names, kind=kind))
        return out

    def activation(self, gate: Value, up: Value, kind: str) -> Value:
        out = self._value(gate.width)
        self.ops.append(Op("activation", (gate, up), (out,), kind=kind))
        return out

    def add(self, x: Value, y: Value) -> Value:
        out = self._value(x.width)
        self.ops.append(Op("add", (x, y), (out,)))
        return out

    def head(self, x: Value, weight: str, cap: float | None = None) -> Value:
        out = self._value(self._shape_of(weight)[0], is_logits=True)
        self.ops.append(Op("head", (x,), (out,), (weight,), (None,), factor=cap or 0.0))
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
