"""The rewrite rules that turn a recorded plan into a shorter one with the same result.

Owns: the rules, each a function from operators to operators that can be left out on its own.
May not know: weights' formats, executors, hardware.
Read next: `native/executor.py`.
Seen in: `firsthand lab fusion`.

Every rule keeps the order of every sum, so that the plan before and after gives the same bits;
what it saves is memory traffic and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from firsthand.checks import shown
from firsthand.compute.plan import Op, Value
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply` is pure; `saves` says in one line what is not done any more."""

    name: str
    saves: str
    apply: Callable[[list[Op]], list[Op]]


def fuse(
    ops: Sequence[Op], disabled: Collection[str] = (), rules: Sequence[Rule] | None = None
) -> list[Op]:
    """All rules in order, those of the CPU if no others are given, but for those in `disabled`."""
    rules = RULES if rules is None else rules
    check_rules(disabled, rules)
    fused = list(ops)
    for rule in rules:
        if rule.name not in disabled:
            fused = rule.apply(fused)
    return fused


def check_rules(names: Collection[str], rules: Sequence[Rule] | None = None) -> None:
    """Raises InvalidRequest naming a rule that does not exist."""
    known = [rule.name for rule in (RULES if rules is None else rules)]
    for name in names:
        if name not in known:
            raise InvalidRequest(
                "disabled_rules", f"no rule {shown(name)}; there are {', '.join(known)}"
            )


def share_input(ops: list[Op]) -> list[Op]:
    """Linear operators that read the same value become one with several weights.

    They move up to the first of them: their only input is already there.
    """
    groups: dict[Value, list[Op]] = {}
    for op in ops:
        if op.name == "linear":
            groups.setdefault(op.inputs[0], []).append(op)
    result: list[Op] = []
    for op in ops:
        if op.name != "linear":
            result.append(op)
        elif op is groups[op.inputs[0]][0]:
            group = groups[op.inputs[0]]
            result.append(
                replace(
                    op,
                    outputs=tuple(value for member in group for value in member.outputs),
                    weights=tuple(name for member in group for name in member.weights),
                    biases=tuple(name for member in group for name in member.biases),
                )
            )
    return result


def norm_into_linear(ops: list[Op]) -> list[Op]:
    """A norm whose only reader is one linear or head operator is done while the rows of that
    operator are prepared."""
    readers = readers_of(ops)
    gone: dict[Value, Op] = {}
    for op in ops:
        if op.name == "norm":
            by = readers.get(op.outputs[0], [])
            if len(by) == 1 and by[0].name in ("linear", "head") and op.num_heads == 1:
                gone[op.outputs[0]] = op
    result = []
    for op in ops:
        if op.name == "norm" and op.outputs[0] in gone:
            continue
        if op.name in ("linear", "head") and op.inputs[0] in gone:
            norm = gone[op.inputs[0]]
            op = replace(op, inputs=norm.inputs, norm=norm.norm)
        result.append(op)
    return result


def gate_up_activation(ops: list[Op]) -> list[Op]:
    """act(x · gateᵀ) · (x · upᵀ) tile by tile: gate and up are never written."""
    readers = readers_of(ops)
    writer = writers_of(ops)
    merged: dict[Op, Op] = {}
    gone = set()
    for op in ops:
        if op.name != "activation":
            continue
        source = writer[op.inputs[0]]
        alone = all(readers[value] == [op] for value in op.inputs)
        if source.name == "linear" and source.outputs == op.inputs and alone:
            merged[source] = replace(source, outputs=op.outputs, gated=op.kind)
            gone.add(op)
    return [merged.get(op, op) for op in ops if op not in gone]


def residual_into_linear(ops: list[Op]) -> list[Op]:
    """x + linear(y) is added while the linear operator's tile is still in registers."""
    readers = readers_of(ops)
    writer = writers_of(ops)
    place = {op: index for index, op in enumerate(ops)}
    merged: dict[Op, Op] = {}
    gone = set()
    for op in ops:
        if op.name != "add":
            continue
        residual, y = op.inputs
        source = writer[y]
        fits = source.name == "linear" and source.outputs == (y,) and not source.gated
        if fits and readers[y] == [op] and place[writer[residual]] < place[source]:
            merged[source] = replace(source, outputs=op.outputs, residual=residual)
            gone.add(op)
    return [merged.get(op, op) for op in ops if op not in gone]


def rope_into_reader(ops: list[Op]) -> list[Op]:
    """A rope whose only reader is a store (keys) or an attention (queries) is done as that
    operator reads its rows."""
    readers = readers_of(ops)
    gone: dict[Value, Op] = {}
    for op in ops:
        by = readers.get(op.outputs[0], []) if op.name == "rope" else []
        if len(by) == 1 and by[0].name in ("store", "attend") and by[0].inputs[0] in op.outputs:
            gone[op.outputs[0]] = op
    result = []
    for op in ops:
        if op.name == "rope" and op.outputs[0] in gone:
            continue
        if op.name in ("store", "attend") and op.inputs[0] in gone:
            rope = gone[op.inputs[0]]
            inputs = (*rope.inputs, *op.inputs[1:])
            op = replace(op, inputs=inputs, rotate=True, table=rope.table)
        result.append(op)
    return result


RULES = (
    Rule("share-input", "rounding the same rows once per weight", share_input),
    Rule("norm-linear", "writing and reading the normalised rows", norm_into_linear),
    Rule("gate-up", "writing and reading gate and up", gate_up_activation),
    Rule("residual", "writing and reading the sum's second term", residual_into_linear),
    Rule("rope", "writing and reading rotated keys and queries", rope_into_reader),
)


def readers_of(ops: Sequence[Op]) -> dict[Value, list[Op]]:
    readers: dict[Value, list[Op]] = {}
    for op in ops:
        for value in op.reads:
            readers.setdefault(value, []).append(op)
    return readers


def writers_of(ops: Sequence[Op]) -> dict[Value, Op]:
    return {value: op for op in ops for value in op.outputs}
