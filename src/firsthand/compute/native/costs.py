"""What an operator has to read and to multiply, whoever computes it.

Owns: the bytes and the multiply-accumulates of an operator of the plan over a batch.
May not know: how an operator is computed, what a machine can do.
Read next: `measure/bounds.py`, the least time that follows; `executor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import OpTime
from firsthand.compute.native import _native
from firsthand.compute.plan import Op
from firsthand.kvcache.store import KVStore


def op_time(
    op: Op,
    ms: float,
    weights: Mapping[str, _native.PackedWeight],
    batch: FlatBatch,
    store: KVStore,
) -> OpTime:
    """An operator that took `ms`; `weights` has those of the plan by their names."""
    own = [weights[name] for name in op.weights]
    return OpTime(
        op.name,
        str(op),
        _shape(op, batch),
        ms,
        _num_bytes(op, own, batch, store),
        _num_macs(op, own, batch),
    )


def _shape(op: Op, batch: FlatBatch) -> tuple[int, ...]:
    if not op.outputs:
        return (batch.num_tokens, sum(value.width for value in op.inputs))
    rows = batch.logit_rows.shape[0] if op.outputs[0].is_logits else batch.num_tokens
    return (rows, sum(value.width for value in op.outputs))


def _num_bytes(
    op: Op, weights: list[_native.PackedWeight], batch: FlatBatch, store: KVStore
) -> int:
    match op.name:
        case "attend":
            return batch.num_context_tokens(op.rule.window) * store.layer(op.layer).slot_bytes
        case "embed":
            return batch.num_tokens * weights[0].num_bytes // weights[0].n
        case _:
            return sum(weight.num_bytes for weight in weights)


def _num_macs(op: Op, weights: list[_native.PackedWeight], batch: FlatBatch) -> int:
    match op.name:
        case "attend":
            return 2 * op.inputs[0].width * batch.num_seen_tokens(op.rule.window)
        case "linear" | "head":
            rows = batch.logit_rows.shape[0] if op.name == "head" else batch.num_tokens
            return int(rows) * sum(weight.n * weight.k for weight in weights)
        case _:
            return 0
