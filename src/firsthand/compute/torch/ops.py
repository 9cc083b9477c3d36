"""The vocabulary of `compute/ops.py` in plain torch, each operator its formula, run at once.

Owns: what each operator computes over one batch.
May not know: models, how weights were loaded, how a batch came to be.
Read next: `formulas.py`, `attention.py`; `executor.py` makes one `TorchOps` for each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.ops import PLAIN_ATTENTION, AttentionRule, ExpertWeights, RoutingRule
from firsthand.compute.torch import formulas
from firsthand.compute.torch.attention import Attention, capped, has_shape
from firsthand.kvcache.store import KVStore
from firsthand.models.rope import RopeSpec

Rotation = tuple[torch.Tensor, torch.Tensor]  # cos, sin
# By name; of each weight, its factors a and b.
Adapters = Mapping[str, Mapping[str, tuple[torch.Tensor, torch.Tensor]]]
NO_ADAPTERS: Adapters = MappingProxyType({})


class TorchOps:
    """`Ops` for one batch: implements compute/ops.py, where each contract is stated."""

    def __init__(
        self,
        batch: FlatBatch,
        store: KVStore,
        weights: Mapping[str, torch.Tensor],
        rotations: Sequence[Rotation],
        attention: Attention,
        adapters: Adapters = NO_ADAPTERS,
    ) -> None:
        self._batch = batch
        self._store = store
        self._weights = weights
        self._rotations = rotations
        self._attention = attention
        self._adapters = adapters
        cos = rotations[0][0]
        self._head_size = 2 * cos.shape[-1]
        self._device = cos.device
        self._dtype = cos.dtype
        self._slots = batch.slots()
        self._token_ids = torch.tensor(batch.token_ids, dtype=torch.int64, device=self._device)
        self._positions = torch.tensor(batch.positions, dtype=torch.int64, device=self._device)
        self._logit_rows = torch.tensor(batch.logit_rows, dtype=torch.int64, device=self._device)
        self._at_head: tuple[torch.Tensor, str, float | None]

    def embed(self, table: str, scale: float = 1.0) -> torch.Tensor:
        return self._weights[table][self._token_ids] * scale

    def norm(self, x: torch.Tensor, gain: str, eps: float, num_heads: int = 1) -> torch.Tensor:
        return formulas.norm(x, self._weights[gain], eps, num_heads)

    def linear(self, x: torch.Tensor, weight: str, bias: str | None = None) -> torch.Tensor:
        y = formulas.linear(x, self._weights[weight], None if bias is None else self._weights[bias])
        return formulas.with_low_rank(y, x, self._factors(weight))

    def rope(self, x: torch.Tensor, num_heads: int, table: int = 0) -> torch.Tensor:
        return formulas.rope(self._split_heads(x, num_heads), *self._rotations[table])

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        arrays = self._store.layer(layer)
        keys, values = (
            self._split_heads(x, x.shape[1] // self._head_size)
            .to(device="cpu", dtype=torch.promote_types(x.dtype, torch.float32))
            .numpy()
            for x in (k, v)
        )
        arrays.write(self._slots, keys, values)

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        rule: AttentionRule = PLAIN_ATTENTION,
    ) -> torch.Tensor:
        q = self._split_heads(q, num_heads)
        mixed = torch.empty_like(q)
        starts = self._batch.row_starts
        for sequence in range(self._batch.num_sequences):
            rows = slice(int(starts[sequence]), int(starts[sequence + 1]))
            if rows.start == rows.stop:
                continue
            context = context_slots(self._batch, sequence)
            k, v = self._read(layer, context)
            assert has_shape(k, n=len(context), G=num_kv_heads, D=q.shape[2])
            mixed[rows] = self._attention(q[rows], k, v, self._positions[rows], rule)
        return mixed.flatten(1)

    def activation(self, gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
        return formulas.activation(gate, up, kind)

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def route(
        self, logits: torch.Tensor, rule: RoutingRule, shared: torch.Tensor | None = None
    ) -> torch.Tensor:
        return formulas.route(logits, rule, shared)

    def experts(
        self, x: torch.Tensor, weights: torch.Tensor, experts: Sequence[ExpertWeights], kind: str
    ) -> torch.Tensor:
        named = self._weights
        matrices = [(named[it.gate], named[it.up], named[it.down]) for it in experts]
        factors = [
            tuple(self._factors(name) for name in (it.gate, it.up, it.down)) for it in experts
        ]
        return formulas.experts(x, weights, matrices, kind, factors)

    def head(self, x: torch.Tensor, weight: str, cap: float | None = None) -> torch.Tensor:
        self._at_head = x, weight, cap
        return self.logits(self._logit_rows)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """(R, V) of rows of this batch, once its head has been reached."""
        x, weight, cap = self._at_head
        y = x[rows] @ self._weights[weight].T
        factors = formulas.among(self._factors(weight), rows)
        return capped(formulas.with_low_rank(y, x[rows], factors), cap)

    def hidden(self, rows: torch.Tensor) -> torch.Tensor:
        """(R, M) what the head reads of them."""
        return self._at_head[0][rows]

    def _factors(self, weight: str) -> list[formulas.LowRankOf]:
        """What adapters add to this weight's product: for whose rows, and a and b."""
        starts = self._batch.row_starts
        return [
            (slice(int(starts[s]), int(starts[s + 1])), *self._adapters[name][weight])
            for s, name in enumerate(self._batch.adapters)
            if name and weight in self._adapters[name]
        ]

    def _split_heads(self, x: torch.Tensor, num_heads: int) -> torch.Tensor:
        """(T, heads, D) of (T, heads · D)."""
        assert has_shape(x, T=self._batch.num_tokens, heads_D=num_heads * self._head_size)
        return x.unflatten(1, (num_heads, self._head_size))

    def _read(self, layer: int, slots: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (n, G, D) out of the store, in the type we compute in."""
        keys, values = self._store.layer(layer).read(slots)
        to = {"device": self._device, "dtype": self._dtype}
        return torch.from_numpy(keys).to(**to), torch.from_numpy(values).to(**to)


def context_slots(batch: FlatBatch, sequence: int) -> NDArray[np.int64]:
    """(n,) the slots of a sequence's positions 0 … its last one in this step."""
    last = int(batch.positions[batch.row_starts[sequence + 1] - 1])
    block, offset = np.divmod(np.arange(last + 1, dtype=np.int64), batch.block_size)
    return np.asarray(batch.block_starts[sequence, block] + offset, dtype=np.int64)


def rotation(
    positions: NDArray[np.int32],
    rope: RopeSpec,
    dtype: torch.dtype,
    device: torch.device,
) -> Rotation:
    """cos and sin of position · frequency, each (T, 1, D/2), scaled by the attention factor.

    The angle is taken in float64 and rounded once: at position 100,000 a float32 angle would be
    wrong in its third decimal. The absolute position is the one at which the key is stored.
    """
    frequencies = np.asarray(rope.inverse_frequencies, dtype=np.float64)
    angles = positions.astype(np.float64)[:, None, None] * frequencies
    cos = torch.tensor(np.cos(angles) * rope.attention_factor, dtype=dtype, device=device)
    sin = torch.tensor(np.sin(angles) * rope.attention_factor, dtype=dtype, device=device)
    return cos, sin
