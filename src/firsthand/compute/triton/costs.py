"""What an operator of a plan reads and multiplies, for the table of a traced step.

Owns: the counts, as `OpTime` defines them.
May not know: kernels, clocks.
Read next: `executor.py` (`trace`).
"""

from __future__ import annotations

from collections.abc import Mapping

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import OpTime
from firsthand.compute.plan import Op
from firsthand.compute.triton.linear import DeviceWeight
from firsthand.compute.triton.store import DeviceStore


def cost_of(
    op: Op, batch: FlatBatch, weights: Mapping[str, DeviceWeight], store: DeviceStore, ms: float
) -> OpTime:
    """Of experts all are counted, whoever chose them."""
    t = batch.num_tokens
    num_bytes = num_macs = 0
    match op.name:
        case "embed":
            table = weights[op.weights[0]]
            num_bytes = t * table.num_bytes // table.shape[0]
        case "linear" | "experts":
            num_bytes = sum(weights[name].num_bytes for name in op.weights)
            num_macs = t * sum(n * k for n, k in (weights[name].shape for name in op.weights))
        case "head":
            n, k = weights[op.weights[0]].shape
            num_bytes, num_macs = weights[op.weights[0]].num_bytes, len(batch.logit_rows) * n * k
        case "attend":
            slot_bytes = store.slot_bytes // store.num_layers
            num_bytes = batch.num_context_tokens(op.rule.window) * slot_bytes
            num_macs = 2 * op.outputs[0].width * batch.num_seen_tokens(op.rule.window)
    width = op.outputs[-1].width if op.outputs else op.inputs[0].width
    rows = len(batch.logit_rows) if op.name == "head" else t
    return OpTime(op.name, _detail(op), (rows, width), ms, num_bytes, num_macs)


def _detail(op: Op) -> str:
    if op.weights:
        return op.weights[0]
    if op.norm is not None:
        return op.norm[0]
    if op.layer >= 0:
        return f"layer {op.layer}"
    return op.kind or (f"{op.num_heads} heads" if op.num_heads else "")
