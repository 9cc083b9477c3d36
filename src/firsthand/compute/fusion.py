"""The rewrite rules that turn a recorded plan into a shorter one with the same result.

Owns: the rules, each a function from steps to steps that can be left out on its own.
May not know: weights' formats, executors, hardware.
Read next: `native/executor.py`.

Every rule keeps the order of every sum, so that the plan before and after gives the same bits;
what it saves is memory traffic and calls. Source: A §2.3, §5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from firsthand.compute.plan import Step, Value
from firsthand.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Rule:
    """`apply` is pure; `saves` says in one line what is not done any more."""

    name: str
    saves: str
    apply: Callable[[list[Step]], list[Step]]


def fuse(steps: Sequence[Step], disabled: Collection[str] = ()) -> list[Step]:
    """All rules in order, but for those named in `disabled`.

    Raises InvalidRequest naming a rule that does not exist.
    """
    known = [rule.name for rule in RULES]
    for name in disabled:
        if name not in known:
            raise InvalidRequest("disable_rule", f"no rule {name!r}; there are {', '.join(known)}")
    fused = list(steps)
    for rule in RULES:
        if rule.name not in disabled:
            fused = rule.apply(fused)
    return fused


def share_input(steps: list[Step]) -> list[Step]:
    """Linear steps that read the same value become one with several weights.

    They move up to the first of them: their only input is already there.
    """
    groups: dict[Value, list[Step]] = {}
    for step in steps:
        if step.op == "linear":
            groups.setdefault(step.inputs[0], []).append(step)
    result: list[Step] = []
    for step in steps:
        if step.op != "linear":
            result.append(step)
        elif step is groups[step.inputs[0]][0]:
            group = groups[step.inputs[0]]
            result.append(
                replace(
                    step,
                    outputs=tuple(value for member in group for value in member.outputs),
                    weights=tuple(name for member in group for name in member.weights),
                    biases=tuple(name for member in group for name in member.biases),
                )
            )
    return result


def norm_into_linear(steps: list[Step]) -> list[Step]:
    """A norm whose only reader is one linear or head step is done while that step's rows are
    prepared."""
    readers = _readers(steps)
    gone: dict[Value, Step] = {}
    for step in steps:
        if step.op == "norm":
            by = readers.get(step.outputs[0], [])
            if len(by) == 1 and by[0].op in ("linear", "head"):
                gone[step.outputs[0]] = step
    result = []
    for step in steps:
        if step.op == "norm" and step.outputs[0] in gone:
            continue
        if step.op in ("linear", "head") and step.inputs[0] in gone:
            norm = gone[step.inputs[0]]
            step = replace(step, inputs=norm.inputs, norm=norm.norm)
        result.append(step)
    return result


def gate_up_activation(steps: list[Step]) -> list[Step]:
    """act(x · gateᵀ) · (x · upᵀ) tile by tile: gate and up are never written."""
    readers = _readers(steps)
    writer = _writers(steps)
    merged: dict[Step, Step] = {}
    gone = set()
    for step in steps:
        if step.op != "activation":
            continue
        source = writer[step.inputs[0]]
        alone = all(readers[value] == [step] for value in step.inputs)
        if source.op == "linear" and source.outputs == step.inputs and alone:
            merged[source] = replace(source, outputs=step.outputs, gated=step.kind)
            gone.add(step)
    return [merged.get(step, step) for step in steps if step not in gone]


def residual_into_linear(steps: list[Step]) -> list[Step]:
    """x + linear(y) is added while the linear step's tile is still in registers."""
    readers = _readers(steps)
    writer = _writers(steps)
    place = {step: index for index, step in enumerate(steps)}
    merged: dict[Step, Step] = {}
    gone = set()
    for step in steps:
        if step.op != "add":
            continue
        residual, y = step.inputs
        source = writer[y]
        fits = source.op == "linear" and source.outputs == (y,) and not source.gated
        if fits and readers[y] == [step] and place[writer[residual]] < place[source]:
            merged[source] = replace(source, outputs=step.outputs, residual=residual)
            gone.add(step)
    return [merged.get(step, step) for step in steps if step not in gone]


def rope_into_reader(steps: list[Step]) -> list[Step]:
    """A rope whose only reader is a store (keys) or an attention (queries) is done as that step
    reads its rows."""
    readers = _readers(steps)
    gone: dict[Value, Value] = {}
    for step in steps:
        by = readers.get(step.outputs[0], []) if step.op == "rope" else []
        if len(by) == 1 and by[0].op in ("store", "attend") and by[0].inputs[0] in step.outputs:
            gone[step.outputs[0]] = step.inputs[0]
    result = []
    for step in steps:
        if step.op == "rope" and step.outputs[0] in gone:
            continue
        if step.op in ("store", "attend") and step.inputs[0] in gone:
            step = replace(step, inputs=(gone[step.inputs[0]], *step.inputs[1:]), rotate=True)
        result.append(step)
    return result


RULES = (
    Rule("share-input", "rounding the same rows once per weight", share_input),
    Rule("norm-linear", "writing and reading the normalised rows", norm_into_linear),
    Rule("gate-up", "writing and reading gate and up", gate_up_activation),
    Rule("residual", "writing and reading the sum's second term", residual_into_linear),
    Rule("rope", "writing and reading rotated keys and queries", rope_into_reader),
)


def _readers(steps: Sequence[Step]) -> dict[Value, list[Step]]:
    readers: dict[Value, list[Step]] = {}
    for step in steps:
        for value in step.reads:
            readers.setdefault(value, []).append(step)
    return readers


def _writers(steps: Sequence[Step]) -> dict[Value, Step]:
    return {value: step for step in steps for value in step.outputs}
