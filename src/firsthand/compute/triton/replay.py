"""A plan, run: each operator by its kernel, over the arena, for one step.

Owns: which kernel an operator is, and where a library's product stands in for ours.
May not know: how weights came here, graphs, engines.
Read next: `executor.py`, which calls it; the kernels: `rows.py`, `linear.py`, `attention.py`.

Everything is queued and nothing waited for, but for one thing: which rows an expert has is known
on the device, and is read once in each layer of experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch

from firsthand.compute.batch import FlatBatch
from firsthand.compute.plan import Op
from firsthand.compute.torch import formulas
from firsthand.compute.torch.attention import capped
from firsthand.compute.triton import rows
from firsthand.compute.triton.arena import Arena
from firsthand.compute.triton.attention import attend
from firsthand.compute.triton.cache import Angles, store
from firsthand.compute.triton.linear import DeviceWeight, embed, linear
from firsthand.compute.triton.steps import Step
from firsthand.compute.triton.store import DeviceStore
from firsthand.values import dataclass

LIBRARY_ROWS = 64  # products of floats with more rows than this are the library's, where it may be

Factors = Mapping[str, Mapping[str, tuple[torch.Tensor, torch.Tensor]]]  # adapters: a and b
Tensors = Sequence[torch.Tensor]
Around = Callable[[Op], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """What a model is made of, on the device. `adapters` may grow."""

    weights: Mapping[str, DeviceWeight]
    vectors: Mapping[str, torch.Tensor]
    angles: Sequence[Angles]  # cos and sin of every position, per table
    adapters: Factors


@dataclass(frozen=True, slots=True, eq=False)
class Now:
    """One step; `batch` is asked for adapters alone."""

    step: Step
    memory: DeviceStore
    batch: FlatBatch


class Replay:
    """`steady`: no library's product, and one tile for all steps, so that a row's bits do not
    depend on how many rows share its step."""

    def __init__(
        self, ops: Sequence[Op], parameters: Parameters, arena: Arena, *, steady: bool
    ) -> None:
        self.ops = tuple(ops)
        self._held = parameters
        self._arena = arena
        self._steady = steady
        self._last = self.ops[-1]  # the head
        self._kernels = MappingProxyType(
            {
                "embed": self._embed,
                "norm": self._norm,
                "linear": self._linear,
                "rope": self._rope,
                "store": self._store,
                "attend": self._attend,
                "activation": self._activation,
                "add": self._add,
                "route": self._route,
                "experts": self._experts,
                "head": self._head,
            }
        )

    @property
    def has_experts(self) -> bool:
        return any(op.name == "experts" for op in self.ops)

    def run(
        self, step: Step, memory: DeviceStore, batch: FlatBatch, around: Around | None = None
    ) -> torch.Tensor:
        """(L, V) the logits, in the arena."""
        now = Now(step, memory, batch)
        for op in self.ops:
            if around is None:
                self._run(op, now)
            else:
                with around(op):
                    self._run(op, now)
        return self._arena.logits(step.logit_rows.shape[0])

    def logits(self, chosen: torch.Tensor, num_tokens: int, batch: FlatBatch) -> torch.Tensor:
        """(R, V) of rows of the step that was run last, which had so many."""
        op, num_chosen = self._last, chosen.shape[0]
        x, out = self._arena.chosen(num_chosen), self._arena.logits(num_chosen)
        if not num_chosen:
            return out
        torch.index_select(self._arena.value(op.inputs[0], num_tokens), 0, chosen, out=x)
        self._product(x, op.weights[0], None, out)
        self._adapt(op.weights[0], x, out, batch, chosen)
        return out if not op.factor else out.copy_(capped(out, op.factor))

    def hidden(self, chosen: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """(R, M) what the head reads of them."""
        return self._arena.value(self._last.inputs[0], num_tokens)[chosen].float()

    def _run(self, op: Op, now: Now) -> None:
        value, t = self._arena.value, now.step.num_tokens
        x = [value(one, t) for one in op.inputs]
        out = [value(one, t) for one in op.outputs if not one.is_logits]
        self._kernels[op.name](op, now, x, out)

    def _embed(self, op: Op, now: Now, _: Tensors, out: Tensors) -> None:
        embed(now.step.token_ids, self._held.weights[op.weights[0]], op.factor, out[0])

    def _norm(self, op: Op, now: Now, x: Tensors, out: Tensors) -> None:
        assert op.norm is not None
        gain, eps = self._held.vectors[op.norm[0]], op.norm[1]
        if op.residual is None:
            rows.norm(x[0], gain, eps, out[0])
        else:
            residual = self._arena.value(op.residual, now.step.num_tokens)
            rows.norm(x[0], gain, eps, out[1], residual, total=out[0])

    def _linear(self, op: Op, now: Now, x: Tensors, out: Tensors) -> None:
        self._product(x[0], op.weights[0], op.biases[0], out[0])
        self._adapt(op.weights[0], x[0], out[0], now.batch)

    def _rope(self, op: Op, now: Now, x: Tensors, out: Tensors) -> None:
        rows.rope(x[0], *self._held.angles[op.table], now.step.places.positions, out[0])

    def _store(self, op: Op, now: Now, x: Tensors, _: Tensors) -> None:
        angles = self._held.angles[op.table] if op.rotate else None
        store(x[0], x[1], now.memory.memory(op.layer), now.step.places, angles)

    def _attend(self, op: Op, now: Now, x: Tensors, out: Tensors) -> None:
        if op.rotate:  # in place: nobody else reads them
            self._rope(op, now, x, x)
        layer, step = now.memory.memory(op.layer), now.step
        attend(x[0], layer, step.places, step.queries, op.rule, out[0], *self._arena.parts)

    def _activation(self, op: Op, _: Now, x: Tensors, out: Tensors) -> None:
        rows.activation(x[0], x[1], op.kind, out[0])

    def _add(self, _op: Op, _: Now, x: Tensors, out: Tensors) -> None:
        torch.add(x[0], x[1], out=out[0])

    def _route(self, op: Op, _: Now, x: Tensors, out: Tensors) -> None:
        assert op.routing is not None
        shared = x[1].float() if len(x) > 1 else None
        out[0].copy_(formulas.route(x[0].float(), op.routing, shared))

    def _head(self, _op: Op, now: Now, _: Tensors, _out: Tensors) -> None:
        self.logits(now.step.logit_rows, now.step.num_tokens, now.batch)

    def _product(self, x: torch.Tensor, weight: str, bias: str | None, out: torch.Tensor) -> None:
        held = self._held.weights[weight]
        added = None if bias is None else self._held.vectors[bias]
        if self._is_librarys(x, held, out):
            torch.mm(x, held.values.T, out=out)
            if added is not None:
                out += added
        else:
            linear(x, held, out, added, steady=self._steady)

    def _is_librarys(self, x: torch.Tensor, held: DeviceWeight, out: torch.Tensor) -> bool:
        return (
            not self._steady
            and x.is_cuda
            and held.form == "float"
            and x.shape[0] > LIBRARY_ROWS
            and held.values.dtype == x.dtype == out.dtype
        )

    def _adapt(
        self,
        weight: str,
        x: torch.Tensor,
        out: torch.Tensor,
        batch: FlatBatch,
        chosen: torch.Tensor | None = None,
    ) -> None:
        """Add x · aᵀ · bᵀ to the rows whose sequence has an adapter for the weight; `chosen` says
        which rows of the step x is, where it is not all. It is known on the device alone, so then
        every row is computed, rather than waited for who they are."""
        for s, name in enumerate(batch.adapters):
            factors = self._held.adapters[name].get(weight) if name else None
            if factors is None:
                continue
            first, last = (int(row) for row in batch.row_starts[s : s + 2])
            whose = slice(None) if chosen is not None else slice(first, last)
            a, b = factors
            tuned = (out[whose].float() + (x[whose].float() @ a.T) @ b.T).to(out.dtype)
            if chosen is not None:
                tuned = torch.where(((chosen >= first) & (chosen < last))[:, None], tuned, out)
            out[whose] = tuned

    def _experts(self, op: Op, now: Now, x: Tensors, out: Tensors) -> None:
        """Each expert over the rows that chose it, summed by index in float32."""
        given, weights = x
        total = torch.zeros_like(given, dtype=torch.float32)
        chose = (weights != 0).cpu()
        for e in range(weights.shape[1]):
            chosen = chose[:, e].nonzero()[:, 0].to(given.device, torch.int32)
            if not len(chosen):
                continue
            gate, up, down = op.weights[3 * e : 3 * e + 3]
            sides = [self._of_expert(one, given[chosen], now.batch, chosen) for one in (gate, up)]
            active = torch.empty_like(sides[0])
            rows.activation(sides[0], sides[1], op.kind, active)
            mixed = self._of_expert(down, active, now.batch, chosen)
            total[chosen] += weights[chosen, e, None] * mixed.float()
        out[0].copy_(total)

    def _of_expert(
        self, weight: str, x: torch.Tensor, batch: FlatBatch, chosen: torch.Tensor
    ) -> torch.Tensor:
        out = x.new_empty((x.shape[0], self._held.weights[weight].shape[0]))
        self._product(x, weight, None, out)
        self._adapt(weight, x, out, batch, chosen)
        return out
