"""A step seen operator by operator: what ran, how long it took, what it had to read.

Owns: the clock around each operator of a traced step.
May not know: what an operator computes.
Read next: `ops.py`, whose values pass through here unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import OpTime
from firsthand.compute.ops import (
    PLAIN_ATTENTION,
    AttentionRule,
    ExpertWeights,
    Ops,
    RoutingRule,
)
from firsthand.compute.torch.compiled import Piece, Tensors
from firsthand.kvcache.store import KVStore


class TracedOps:
    """`Ops` that hands every call on and notes one `OpTime` for it in `times`.

    What `num_bytes` counts is said there.
    """

    def __init__(
        self,
        ops: Ops[torch.Tensor],
        batch: FlatBatch,
        store: KVStore,
        weights: Mapping[str, torch.Tensor],
        device: torch.device,
    ) -> None:
        self._ops = ops
        self._batch = batch
        self._store = store
        self._weights = weights
        self._device = device
        self.times: list[OpTime] = []

    def embed(self, table: str, scale: float = 1.0) -> torch.Tensor:
        weight = self._weights[table]
        row_bytes = weight.shape[1] * weight.element_size()
        num_bytes = self._batch.num_tokens * row_bytes
        return self._timed("embed", table, num_bytes, lambda: self._ops.embed(table, scale))

    def norm(self, x: torch.Tensor, gain: str, eps: float, num_heads: int = 1) -> torch.Tensor:
        num_bytes = self._bytes_of(gain)
        call = partial(self._ops.norm, x, gain, eps, num_heads)
        return self._timed("norm", gain, num_bytes, call)

    def linear(self, x: torch.Tensor, weight: str, bias: str | None = None) -> torch.Tensor:
        num_bytes = self._bytes_of(weight) + (self._bytes_of(bias) if bias else 0)
        call = partial(self._ops.linear, x, weight, bias)
        return self._timed("linear", weight, num_bytes, call, self._macs_of(x, weight))

    def rope(self, x: torch.Tensor, num_heads: int, table: int = 0) -> torch.Tensor:
        call = partial(self._ops.rope, x, num_heads, table)
        return self._timed("rope", f"{num_heads} heads", 0, call)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        def write() -> torch.Tensor:
            self._ops.store(layer, k, v)
            return k

        self._timed("store", f"layer {layer}", 0, write)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        rule: AttentionRule = PLAIN_ATTENTION,
    ) -> torch.Tensor:
        num_read = self._batch.num_context_tokens(rule.window)
        return self._timed(
            "attend",
            f"layer {layer}",
            num_read * self._store.layer(layer).slot_bytes,
            lambda: self._ops.attend(layer, q, num_heads, num_kv_heads, rule),
            2 * q.shape[1] * self._batch.num_seen_tokens(rule.window),
        )

    def activation(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        return self._timed("activation", kind, 0, lambda: self._ops.activation(gate, up, kind))

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self._timed("add", "", 0, lambda: self._ops.add(x, y))

    def route(
        self, logits: torch.Tensor, rule: RoutingRule, shared: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._timed("route", "", 0, lambda: self._ops.route(logits, rule, shared))

    def experts(
        self, x: torch.Tensor, weights: torch.Tensor, experts: Sequence[ExpertWeights], kind: str
    ) -> torch.Tensor:
        taken = [(it, int(weights[:, e].count_nonzero())) for e, it in enumerate(experts)]
        used = [(name, rows) for it, rows in taken if rows for name in (it.gate, it.up, it.down)]
        return self._timed(
            "experts",
            experts[0].gate,
            sum(self._bytes_of(name) for name, _ in used),
            lambda: self._ops.experts(x, weights, experts, kind),
            sum(self._weights[name].numel() * rows for name, rows in used),
        )

    def head(self, x: torch.Tensor, weight: str, cap: float | None = None) -> torch.Tensor:
        num_bytes = self._bytes_of(weight)
        num_rows = int(self._batch.logit_rows.shape[0])
        num_macs = num_rows * self._weights[weight].numel()
        call = partial(self._ops.head, x, weight, cap)
        return self._timed("head", weight, num_bytes, call, num_macs)

    def piece(self, piece: Piece, call: Callable[[], Tensors]) -> Tensors:
        """A compiled piece is one entry: a linear layer with what is fused around it."""
        num_rows = self._batch.num_tokens
        matrices = [name for op in piece.ops for name in op.weights]
        outputs: list[Tensors] = []

        def run() -> torch.Tensor:
            outputs.append(call())
            return outputs[0][0][:num_rows]

        self._timed(
            "linear",
            f"compiled {piece}",
            sum(self._bytes_of(name) for name in piece.weights),
            run,
            num_rows * sum(self._weights[name].numel() for name in matrices),
        )
        return outputs[0]

    def _bytes_of(self, weight: str) -> int:
        return int(self._weights[weight].nbytes)

    def _macs_of(self, x: torch.Tensor, weight: str) -> int:
        return int(x.shape[0] * self._weights[weight].numel())

    def _timed(
        self,
        name: str,
        detail: str,
        num_bytes: int,
        call: Callable[[], torch.Tensor],
        num_macs: int = 0,
    ) -> torch.Tensor:
        self._wait()
        start = time.perf_counter()
        result = call()
        self._wait()
        ms = (time.perf_counter() - start) * 1000
        self.times.append(OpTime(name, detail, tuple(result.shape), ms, num_bytes, num_macs))
        return result

    def _wait(self) -> None:
        """A CUDA call returns before its work is done; the clock must not."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
