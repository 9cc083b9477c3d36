"""A step by `torch.compile`: the rows between two accesses to the store become one graph.

Owns: where a recorded plan is cut, the graph of each piece, padding, and the counts.
May not know: models, how weights were loaded, how an operator that touches the batch is computed.
Read next: `formulas.py`, what a graph is made of; `compute/buckets.py`, which bucket a step gets.

What is compiled: norm, linear, rope, activation, add and route. They know nothing but their own
rows, so rows of zeros below change nothing and are cut off again. What is not: embed, store,
attend, experts (who has which rows shows only then) and head, which see the step's own rows only.
Padding therefore never comes near the store.

A graph takes its weights as arguments. All layers of a model have the same shape, so a bucket
needs three graphs, however many layers there are. A graph is compiled when a step first needs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from firsthand.compute.buckets import Buckets, CompileFacts
from firsthand.compute.ops import ExpertWeights, Ops
from firsthand.compute.plan import Op, Value
from firsthand.compute.torch import formulas
from firsthand.compute.torch.ops import Rotation
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

MAX_REASON = 300  # characters of an error of torch's
ROW_WISE = ("norm", "linear", "rope", "activation", "add", "route")

Tensors = tuple[torch.Tensor, ...]
Graph = Callable[..., Tensors]
Around = Callable[["Piece", Callable[[], Tensors]], Tensors]


@dataclass(frozen=True, slots=True)
class Piece:
    """Row-wise operators that run one after another.

    `inputs` come from before it, `outputs` are read after it. `shape` says all that a graph
    depends on but the number of rows: pieces of equal shape share one.
    """

    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[str, ...]
    shape: str

    def __str__(self) -> str:
        """Its operators in order, equal neighbours counted, and its first weight: the layer."""
        runs = [(name, len(list(alike))) for name, alike in groupby(op.name for op in self.ops)]
        text = ", ".join(name if count == 1 else f"{count} {name}" for name, count in runs)
        return f"{text} from {self.weights[0].removesuffix('.weight')}"


class CompiledSteps:
    """The pieces of one model, and the graphs that were compiled for them."""

    def __init__(
        self, plan: Sequence[Op], weights: Mapping[str, torch.Tensor], sizes: tuple[int, ...]
    ) -> None:
        self._parts = tuple(cut(plan, lambda name: tuple(weights[name].shape)))
        self._weights = weights
        self._buckets = Buckets(sizes)
        self._graphs: dict[tuple[str, int], Graph] = {}

    def bucket(self, num_tokens: int) -> int | None:
        """Where a step runs; None is operator by operator."""
        return self._buckets.choose(num_tokens)

    def count(self, num_tokens: int) -> None:
        """One step of the engine runs now; a traced one does not count."""
        self._buckets.count(num_tokens)

    def facts(self) -> CompileFacts:
        return self._buckets.facts()

    def run(
        self,
        bucket: int,
        ops: Ops[torch.Tensor],
        turns: Sequence[Rotation],
        num_tokens: int,
        around: Around | None = None,
    ) -> torch.Tensor:
        """(L, V) the logits. `ops` is an `Ops` over the batch; `around` runs each piece's call."""
        angles = [pad_rows(table, bucket) for turn in turns for table in turn]
        values: dict[Value, torch.Tensor] = {}
        for part in self._parts:
            if isinstance(part, Op):
                inputs = [values[value][:num_tokens] for value in part.inputs]
                result = touch_batch(ops, part, inputs)
                if result is not None:
                    values[part.outputs[0]] = result
                continue
            arguments = [pad_rows(values[value], bucket) for value in part.inputs]
            arguments += [*angles, *(self._weights[name] for name in part.weights)]
            graph = self._graph(part, bucket, len(turns))

            def call(graph: Graph = graph, arguments: list[Any] = arguments) -> Tensors:
                return graph(*arguments)

            outputs = call() if around is None else around(part, call)
            values.update(zip(part.outputs, outputs, strict=True))
        return values[self._parts[-1].outputs[0]]

    def _graph(self, piece: Piece, bucket: int, num_turns: int) -> Graph:
        """The first call of a graph compiles it; that call's time is its compile time."""
        found = self._graphs.get((piece.shape, bucket))
        if found is not None:
            return found
        graph = torch.compile(graph_of(piece, num_turns), fullgraph=True, dynamic=False)

        def first_call(*arguments: torch.Tensor) -> Tensors:
            started_s = time.perf_counter()
            outputs: Tensors = graph(*arguments)
            self._buckets.add_compile_ms(bucket, (time.perf_counter() - started_s) * 1e3)
            self._graphs[piece.shape, bucket] = graph
            return outputs

        return first_call


def cut(plan: Sequence[Op], shape_of: Callable[[str], tuple[int, ...]]) -> Iterator[Op | Piece]:
    """A plan in order: operators that touch the batch alone, those between them as pieces."""
    last_use = {value: index for index, op in enumerate(plan) for value in op.reads}
    start = 0
    for index, op in enumerate([*plan, None]):
        if op is not None and op.name in ROW_WISE:
            continue
        if start < index:
            yield _piece(tuple(plan[start:index]), last_use, index, shape_of)
        if op is not None:
            yield op
        start = index + 1


def _piece(
    ops: tuple[Op, ...],
    last_use: Mapping[Value, int],
    end: int,
    shape_of: Callable[[str], tuple[int, ...]],
) -> Piece:
    made = {value for op in ops for value in op.outputs}
    inputs = tuple(dict.fromkeys(v for op in ops for v in op.reads if v not in made))
    outputs = tuple(v for op in ops for v in op.outputs if last_use.get(v, -1) >= end)
    weights = tuple(dict.fromkeys(name for op in ops for name in weights_of(op)))
    numbers = {
        value: n for n, value in enumerate([*inputs, *(v for op in ops for v in op.outputs)])
    }
    lines = [
        (
            op.name,
            [numbers[value] for value in op.reads],
            [weights.index(name) for name in weights_of(op)],
            op.norm and op.norm[1],
            op.num_heads,
            op.kind,
            op.table,
            op.routing,
        )
        for op in ops
    ]
    shapes = [shape_of(name) for name in weights]
    widths = [value.width for value in inputs]
    shape = repr((lines, widths, shapes, [numbers[value] for value in outputs]))
    return Piece(ops, inputs, outputs, weights, shape)


def weights_of(op: Op) -> tuple[str, ...]:
    """Every tensor that a row-wise operator names."""
    gain = () if op.norm is None else (op.norm[0],)
    return (*gain, *op.weights, *(name for name in op.biases if name is not None))


def graph_of(piece: Piece, num_turns: int) -> torch.fx.GraphModule:
    """The piece as calls of torch: (inputs …, cos and sin of each turn, weights …) → outputs.

    A module of its own per bucket, so that no graph is taken for a variant of another: of those,
    torch keeps only a few.
    """
    graph = torch.fx.Graph()

    def argument(name: str) -> Any:
        return torch.fx.Proxy(graph.placeholder(name))

    values: dict[Value, Any] = {v: argument(f"x{n}") for n, v in enumerate(piece.inputs)}
    turns = [(argument(f"cos{n}"), argument(f"sin{n}")) for n in range(num_turns)]
    weights = {name: argument(f"w{n}") for n, name in enumerate(piece.weights)}
    for op in piece.ops:
        values[op.outputs[0]] = _row_wise(op, [values[v] for v in op.reads], weights, turns)
    graph.output(tuple(values[v].node for v in piece.outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _row_wise(
    op: Op, x: Sequence[Any], weights: Mapping[str, Any], turns: Sequence[tuple[Any, Any]]
) -> Any:
    match op.name:
        case "norm":
            assert op.norm is not None
            return formulas.norm(x[0], weights[op.norm[0]], op.norm[1], op.num_heads)
        case "linear":
            bias = op.biases[0]
            return formulas.linear(
                x[0], weights[op.weights[0]], None if bias is None else weights[bias]
            )
        case "rope":
            head_size = op.outputs[0].width // op.num_heads
            return formulas.rope(x[0].unflatten(1, (op.num_heads, head_size)), *turns[op.table])
        case "activation":
            return formulas.activation(x[0], x[1], op.kind)
        case "add":
            return x[0] + x[1]
        case "route":
            assert op.routing is not None
            return formulas.route(x[0], op.routing, x[1] if len(x) > 1 else None)
    raise ValueError(f"operator {op.name!r}")


def touch_batch(ops: Ops[torch.Tensor], op: Op, x: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """An operator that knows the batch, over the step's own rows."""
    match op.name:
        case "embed":
            return ops.embed(op.weights[0], op.factor)
        case "store":
            ops.store(op.layer, x[0], x[1])
            return None
        case "attend":
            return ops.attend(op.layer, x[0], op.num_heads, op.num_kv_heads, op.rule)
        case "experts":
            named = zip(*(op.weights[which::3] for which in range(3)), strict=True)
            return ops.experts(x[0], x[1], [ExpertWeights(*each) for each in named], op.kind)
        case "head":
            return ops.head(x[0], op.weights[0], op.factor or None)
    raise ValueError(f"operator {op.name!r}")


def pad_rows(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Zeros below; a row of zeros stays finite in every row-wise operator."""
    missing = num_rows - x.shape[0]
    if missing == 0:
        return x
    return torch.cat((x, x.new_zeros((missing, *x.shape[1:]))))


def check_compiler(device: torch.device) -> None:
    """Compile a sum, so that a missing compiler is found at load. Raises InvalidRequest."""
    try:
        torch.compile(lambda x: x + 1, fullgraph=True)(torch.zeros(2, device=device))
    except Exception as error:
        reason = " ".join(str(error).partition("\n\nSet TORCH")[0].split())  # then its own advice
        raise InvalidRequest("compile", f"does not work here: {reason[:MAX_REASON]}") from error
