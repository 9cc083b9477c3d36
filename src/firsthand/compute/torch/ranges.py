"""A named range around every operator, for whoever watches from outside.

Owns: which calls get a range, and its name.
May not know: who draws the ranges: `torch.cuda.nvtx.range` (Nsight Systems) and
`torch.profiler.record_function` are given by the executor.
Read next: `executor.py`, which wraps the operators on CUDA, and while a profiler watches; never
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from firsthand.compute.ops import (
    PLAIN_ATTENTION,
    AttentionRule,
    ExpertWeights,
    Ops,
    RoutingRule,
)
from firsthand.compute.torch.compiled import Piece, Tensors

Range = Callable[[str], AbstractContextManager[Any]]


class RangedOps:
    """`Ops` that hands every call on, inside a range named `operator weight` or `… layer`."""

    def __init__(self, ops: Ops[torch.Tensor], range_of: Range) -> None:
        self._ops = ops
        self._range_of = range_of

    def embed(self, table: str, scale: float = 1.0) -> torch.Tensor:
        with self._range_of(f"embed {table}"):
            return self._ops.embed(table, scale)

    def norm(self, x: torch.Tensor, gain: str, eps: float, num_heads: int = 1) -> torch.Tensor:
        with self._range_of(f"norm {gain}"):
            return self._ops.norm(x, gain, eps, num_heads)

    def linear(self, x: torch.Tensor, weight: str, bias: str | None = None) -> torch.Tensor:
        with self._range_of(f"linear {weight}"):
            return self._ops.linear(x, weight, bias)

    def rope(self, x: torch.Tensor, num_heads: int, table: int = 0) -> torch.Tensor:
        with self._range_of(f"rope {num_heads} heads"):
            return self._ops.rope(x, num_heads, table)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        with self._range_of(f"store layer {layer}"):
            self._ops.store(layer, k, v)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        rule: AttentionRule = PLAIN_ATTENTION,
    ) -> torch.Tensor:
        with self._range_of(f"attend layer {layer}"):
            return self._ops.attend(layer, q, num_heads, num_kv_heads, rule)

    def activation(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        with self._range_of(f"activation {kind}"):
            return self._ops.activation(gate, up, kind)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with self._range_of("add"):
            return self._ops.add(x, y)

    def route(
        self, logits: torch.Tensor, rule: RoutingRule, shared: torch.Tensor | None = None
    ) -> torch.Tensor:
        with self._range_of("route"):
            return self._ops.route(logits, rule, shared)

    def experts(
        self, x: torch.Tensor, weights: torch.Tensor, experts: Sequence[ExpertWeights], kind: str
    ) -> torch.Tensor:
        with self._range_of(f"experts {experts[0].gate}"):
            return self._ops.experts(x, weights, experts, kind)

    def head(self, x: torch.Tensor, weight: str, cap: float | None = None) -> torch.Tensor:
        with self._range_of(f"head {weight}"):
            return self._ops.head(x, weight, cap)

    def piece(self, piece: Piece, call: Callable[[], Tensors]) -> Tensors:
        """A compiled piece of the plan is one range."""
        with self._range_of(f"compiled {piece}"):
            return call()
