"""A model run once over the calibration text, in numpy, with an eye on what enters each layer.

Owns: the operators' formulas for whole sequences of one length, and the calls of the listener.
May not know: what is done with the inputs of a layer.
Read next: `compute/ops.py` (the contracts), `rounding.py` (the listener).

The model's own file is run, so a family needs nothing here. All is float32 and no cache is kept: a
sequence attends to itself. A layer that stays exact, such as a router, is none of the listener's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.ops import ExpertWeights, RoutingRule
from firsthand.models.rope import RopeSpec
from firsthand.quant.formats import WeightSource, decode, row_blocks

Floats = NDArray[np.float32]


class Listener(Protocol):
    """Who sees the inputs of the linear layers, and gives their outputs."""

    def normed(self, x: Floats, gain: str) -> Floats:
        """x (T, M) is normed and not yet multiplied by the gain; what comes back is."""

    def linear(self, x: Floats, weight: str) -> Floats:
        """(T, N), without a bias. T may be 0: an expert that no row chose."""


class Weights:
    """`WeightSink` that keeps where each matrix comes from, and reads it when it is asked for.
    `exact` are the matrices that are never rounded."""

    def __init__(self, exact: frozenset[str] = frozenset()) -> None:
        self.exact = exact
        self.sources: dict[str, WeightSource] = {}
        self.vectors: dict[str, Floats] = {}
        self.aliases: dict[str, str] = {}

    def load_weight(self, source: WeightSource) -> None:
        self.sources[source.name] = source

    def load_vector(self, name: str, values: Floats) -> None:
        self.vectors[name] = values

    def alias(self, name: str, target: str) -> None:
        self.aliases[name] = target

    def shape(self, name: str) -> tuple[int, int]:
        return self.sources[self.aliases.get(name, name)].shape

    def matrix(self, name: str) -> Floats:
        """(N, K), decoded."""
        source = self.sources[self.aliases.get(name, name)]
        values = np.empty(source.shape, np.float32)
        for start, stop in row_blocks(*source.shape):
            values[start:stop] = decode(source.rows(start, stop))
        source.release()
        return values

    def rows(self, name: str, wanted: NDArray[np.int64]) -> Floats:
        """Some rows, in the order asked for."""
        return self.matrix(name)[wanted]


class Done(Exception):
    """The head is reached: what it would give is not needed."""


class NumpyOps:
    """`Ops` over token_ids (S, L), T = S · L rows."""

    def __init__(
        self,
        token_ids: NDArray[np.int64],
        weights: Weights,
        ropes: tuple[RopeSpec, ...],
        listener: Listener,
    ) -> None:
        self._token_ids = token_ids
        self._weights = weights
        self._tables = [_table(rope, token_ids.shape[1]) for rope in ropes]
        self._listener = listener
        self._stored: dict[int, tuple[Floats, Floats]] = {}

    def embed(self, table: str, scale: float = 1.0) -> Floats:
        return self._weights.rows(table, self._token_ids.reshape(-1)) * np.float32(scale)

    def norm(self, x: Floats, gain: str, eps: float, num_heads: int = 1) -> Floats:
        heads = x.reshape(len(x), num_heads, -1)
        size = np.sqrt(np.mean(heads * heads, axis=2, keepdims=True) + np.float32(eps))
        if num_heads > 1:
            normed: Floats = heads / size * self._weights.vectors[gain]
            return normed.reshape(x.shape)
        return self._listener.normed((heads / size).reshape(x.shape), gain)

    def linear(self, x: Floats, weight: str, bias: str | None = None) -> Floats:
        if weight in self._weights.exact:
            out = x @ self._weights.matrix(weight).T
        else:
            out = self._listener.linear(x, weight)
        return out if bias is None else out + self._weights.vectors[bias]

    def rope(self, x: Floats, num_heads: int, table: int = 0) -> Floats:
        cos, sin = self._tables[table]
        s, length = self._token_ids.shape
        heads = x.reshape(s, length, num_heads, -1)
        half = cos.shape[-1]
        low, high = heads[..., :half], heads[..., half:]
        turned = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
        return turned.reshape(x.shape)

    def store(self, layer: int, k: Floats, v: Floats) -> None:
        self._stored[layer] = (k, v)

    def attend(
        self, layer: int, q: Floats, num_heads: int, num_kv_heads: int, rule: Any = None
    ) -> Floats:
        s, length = self._token_ids.shape
        k, v = self._stored.pop(layer)
        size = q.shape[1] // num_heads
        scale = np.float32(size**-0.5 if rule is None else rule.scale_of(size))
        ahead = np.arange(length)[None] - np.arange(length)[:, None]
        hidden = ahead > 0
        if rule is not None and rule.window is not None:
            hidden |= ahead <= -rule.window
        out = np.empty((s, length, num_heads, size), np.float32)
        queries = q.reshape(s, length, num_heads, size)
        keys, values = (x.reshape(s, length, num_kv_heads, size) for x in (k, v))
        for sequence in range(s):
            for head in range(num_heads):
                group = head // (num_heads // num_kv_heads)
                scores = queries[sequence, :, head] @ keys[sequence, :, group].T * scale
                if rule is not None and rule.cap is not None:
                    scores = np.tanh(scores / rule.cap) * np.float32(rule.cap)
                scores[hidden] = -np.inf
                scores -= scores.max(axis=1, keepdims=True)
                np.exp(scores, out=scores)
                scores /= scores.sum(axis=1, keepdims=True)
                out[sequence, :, head] = scores @ values[sequence, :, group]
        return out.reshape(q.shape)

    def activation(self, gate: Floats, up: Floats, kind: str) -> Floats:
        return _ACTIVATIONS[kind](gate) * up

    def add(self, x: Floats, y: Floats) -> Floats:
        return x + y

    def route(self, logits: Floats, rule: RoutingRule, shared: Floats | None = None) -> Floats:
        weights: Floats = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        others = np.argsort(-weights, axis=1, kind="stable")[:, rule.top_k :]
        np.put_along_axis(weights, others, np.float32(0), axis=1)
        if rule.renormalise:
            weights /= weights.sum(axis=1, keepdims=True)
        if shared is None:
            return weights
        return np.concatenate([weights, _sigmoid(shared)], axis=1)

    def experts(
        self, x: Floats, weights: Floats, experts: Sequence[ExpertWeights], kind: str
    ) -> Floats:
        out = np.zeros_like(x)
        for index, named in enumerate(experts):
            rows = np.flatnonzero(weights[:, index])
            chosen = x[rows]
            gate, up = (self._listener.linear(chosen, name) for name in (named.gate, named.up))
            hidden = self.activation(gate, up, kind)
            out[rows] += weights[rows, index, None] * self._listener.linear(hidden, named.down)
        return out

    def head(self, x: Floats, weight: str, cap: float | None = None) -> NoReturn:
        raise Done


def _sigmoid(x: Floats) -> Floats:
    out: Floats = np.reciprocal(1 + np.exp(-np.maximum(x, np.float32(-80))))
    return out


def _silu(x: Floats) -> Floats:
    return x * _sigmoid(x)


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    out: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return out


_ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {"silu": _silu, "gelu_tanh": _gelu_tanh}


def _table(rope: RopeSpec, length: int) -> tuple[Floats, Floats]:
    """cos and sin (length, 1, D/2)."""
    angles = np.arange(length)[:, None, None] * np.asarray(rope.inverse_frequencies)
    factor = rope.attention_factor
    return (
        (np.cos(angles) * factor).astype(np.float32),
        (np.sin(angles) * factor).astype(np.float32),
    )
