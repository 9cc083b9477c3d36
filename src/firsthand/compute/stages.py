"""A recorded model, cut between two layers: the operators of one stage.

Owns: where a plan may be cut, and the two operators that stand at a cut: `receive`, whose result
are rows (T, M) that another stage computed, and `send`, which gives them away.
May not know: how rows travel, who computes the other stages, how a split is chosen.
Read next: `native/executor.py` (`prepare_ops`, `run_stage`); `cluster/pipeline/stage.py`.

A plan is cut where a single value is alive: the residual stream, in float32. Whatever lies before
the cut depends on that value alone, so both parts together give the bits of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firsthand.compute.plan import Op, Value
from firsthand.errors import InvalidRequest, UnsupportedModel


def stage_ops(ops: Sequence[Op], first: int, last: int) -> list[Op]:
    """The operators of layers `first` … `last` − 1, which are counted from 0 in the result. The
    first stage has what comes before the layers, the last one what comes after them.

    `ops` are as they were recorded. Raises UnsupportedModel where more than one value crosses a
    border of layers.
    """
    num_layers = 1 + max(op.layer for op in ops)
    if not 0 <= first < last <= num_layers:
        raise InvalidRequest("split", f"no layers {first} to {last - 1}: there are {num_layers}")
    begin, received = (0, None) if first == 0 else _border(ops, first)
    end, sent = (len(ops), None) if last == num_layers else _border(ops, last)
    own = [replace(op, layer=op.layer - first) if op.layer >= 0 else op for op in ops[begin:end]]
    before = [] if received is None else [Op("receive", (), (received,))]
    after = [] if sent is None else [Op("send", (sent,), ())]
    return [*before, *own, *after]


def names_of(ops: Sequence[Op]) -> set[str]:
    """The tensors that these operators read."""
    named = {name for op in ops for name in (*op.weights, *op.biases) if name is not None}
    return named | {op.norm[0] for op in ops if op.norm is not None}


def _border(ops: Sequence[Op], layer: int) -> tuple[int, Value]:
    """The last place before the layer's attention that a single value crosses, and that value."""
    last_use = {value: index for index, op in enumerate(ops) for value in op.reads}
    found = None
    alive: set[Value] = set()
    for index, op in enumerate(ops):
        alive = {value for value in alive if last_use.get(value, -1) >= index}
        if len(alive) == 1:
            found = index, next(iter(alive))
        if op.layer == layer:
            break
        alive.update(op.outputs)
        if op.layer == layer - 1:
            found = None  # whatever comes before lies inside an earlier layer
    if found is None:
        raise UnsupportedModel(f"layer {layer}: more than one value comes from the layers before")
    return found
