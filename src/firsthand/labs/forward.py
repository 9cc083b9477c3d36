"""A forward pass small enough to break: one sequence, plain floats, a cache of its own.

Owns: what can be exchanged, function by function; a cache; the step over both.
May not know: batches, blocks, formats, which fault is put in.
Read next: `attention_labs.py`, which exchanges them; `quantize/forward.py`, whose formulas the
other operators are; `models/llama.py`, the model's own file, which runs over these.

The model is the one that the engine runs, so an answer of a faulty forward pass stands beside the
engine's own. Nothing here is quick: it is for some dozens of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.ops import PLAIN_ATTENTION, AttentionRule
from firsthand.errors import UnsupportedModel
from firsthand.generation.reading import read_spec, read_tokenizer
from firsthand.models import families
from firsthand.models.rope import RopeSpec
from firsthand.models.spec import ModelSpec
from firsthand.quantize.forward import NumpyOps, Weights
from firsthand.text.tokenizer import Tokenizer
from firsthand.values import dataclass
from firsthand.weights.loading import load
from firsthand.weights.open import open_checkpoint

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def scaled(scores: Floats, head_size: int) -> Floats:
    """1 / sqrt(D), before the softmax. arXiv 1706.03762, section 3.2.1."""
    return scores * np.float32(head_size**-0.5)


def visible(positions: Ints, num_keys: int) -> Bools:
    """(t, n) True where the query at a position may see the key at another: none that is later."""
    return np.asarray(np.arange(num_keys)[None] <= positions[:, None])


def softmax(scores: Floats) -> Floats:
    """Over the last axis; the largest score is taken off first, so that no exponent is above 0."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float32)


def mix(scores: Floats, values: Floats) -> Floats:
    """(H, t, D): softmax(scores) · values, of (H, t, n) and (H, n, D)."""
    return np.asarray(softmax(scores) @ values, np.float32)


def where_it_stands(positions: Ints) -> Ints:
    """A token is turned by its own position, the index at which its key is stored."""
    return positions


def as_it_is(x: Floats, weight: str) -> Floats:
    """What enters a linear layer, unrounded."""
    return x


@dataclass(frozen=True, slots=True)
class Parts:
    """What a lab may exchange."""

    scaled: Callable[[Floats, int], Floats] = scaled
    visible: Callable[[Ints, int], Bools] = visible
    mix: Callable[[Floats, Floats], Floats] = mix
    turned_at: Callable[[Ints], Ints] = where_it_stands
    inputs: Callable[[Floats, str], Floats] = as_it_is


RIGHT = Parts()


def attention(parts: Parts, q: Floats, k: Floats, v: Floats, positions: Ints) -> Floats:
    """(t, H, D) of q (t, H, D), k and v (n, G, D); q's rows stand at `positions` (t,)."""
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x, group, axis=1).transpose(1, 0, 2) for x in (k, v))
    scores = parts.scaled(q.transpose(1, 0, 2) @ keys.transpose(0, 2, 1), q.shape[2])
    hidden = ~parts.visible(positions, len(k))
    scores = np.where(hidden, np.float32(-np.inf), scores)
    return parts.mix(scores, values).transpose(1, 0, 2)


class Session:
    """One sequence, and its cache: `feed` computes what comes next in it."""

    def __init__(self, forward: Forward, parts: Parts = RIGHT) -> None:
        self._forward = forward
        self.parts = parts
        self.cache: dict[int, tuple[Floats, Floats]] = {}
        self.num_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> Floats:
        """(t, V) the logits after each of them."""
        positions = np.arange(self.num_tokens, self.num_tokens + len(token_ids), dtype=np.int64)
        logits = self._forward.step(np.asarray(token_ids, np.int64), positions, self)
        self.num_tokens += len(token_ids)
        return logits

    def generate(self, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        """The likeliest tokens, one after the other, in pieces as an engine computes them."""
        found: list[int] = []
        ids = list(token_ids)
        while len(found) < num_tokens:
            found.append(int(np.nan_to_num(self.feed(ids)[-1], nan=-np.inf).argmax()))
            ids = found[-1:]
        return found

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats, positions: Ints) -> Floats:
        """After the new keys and values have joined the cache."""
        if layer in self.cache:
            old_k, old_v = self.cache[layer]
            k, v = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        self.cache[layer] = k, v
        return attention(self.parts, q, k, v, positions)


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """A model in plain floats."""

    spec: ModelSpec
    tokenizer: Tokenizer
    weights: Weights
    matrices: dict[str, Floats]

    def start(self, parts: Parts = RIGHT) -> Session:
        return Session(self, parts)

    def step(self, token_ids: Ints, positions: Ints, session: Session) -> Floats:
        program = families.program(self.spec)
        logits: Floats = program.forward(_Step(self, token_ids, positions, session))
        return logits

    def nll(self, token_ids: Sequence[int], parts: Parts = RIGHT, piece: int = 0) -> float:
        """The mean surprise (nats) at each token of a text but the first; read whole, or in pieces
        of so many tokens."""
        session = self.start(parts)
        size = piece or len(token_ids)
        pieces = [token_ids[at : at + size] for at in range(0, len(token_ids), size)]
        logits = np.concatenate([session.feed(one) for one in pieces])[:-1].astype(np.float64)
        top = logits.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
        found = log_sums - logits[np.arange(len(logits)), np.asarray(token_ids[1:])]
        mean = float(found.mean())
        return mean if math.isfinite(mean) else math.inf

    def matrix(self, name: str) -> Floats:
        name = self.weights.aliases.get(name, name)
        if name not in self.matrices:
            self.matrices[name] = self.weights.matrix(name)
        return self.matrices[name]


@contextmanager
def exchanged(forward: Forward, matrices: Mapping[str, Floats]) -> Iterator[None]:
    """Meanwhile these stand in place of the model's own."""
    kept = {name: forward.matrix(name) for name in matrices}
    forward.matrices.update(matrices)
    try:
        yield
    finally:
        forward.matrices.update(kept)


class _Step:
    """`Ops` over one piece of one sequence: what looks back is its own, all else `NumpyOps`'."""

    def __init__(
        self, forward: Forward, token_ids: Ints, positions: Ints, session: Session
    ) -> None:
        self._forward = forward
        self._token_ids = token_ids
        self._positions = positions
        self._session = session
        spec = forward.spec
        ropes = (spec.rope,) if spec.local_rope is None else (spec.rope, spec.local_rope)
        self._turns = [_turns(rope, session.parts.turned_at(positions)) for rope in ropes]
        self._rows = NumpyOps(token_ids[None], forward.weights, (), self)
        self._stored: tuple[Floats, Floats]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def embed(self, table: str, scale: float = 1.0) -> Floats:
        return self._forward.matrix(table)[self._token_ids] * np.float32(scale)

    def rope(self, x: Floats, num_heads: int, table: int = 0) -> Floats:
        cos, sin = self._turns[table]
        low, high = np.split(x.reshape(len(x), num_heads, -1), 2, axis=2)
        turned = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)
        return turned.reshape(x.shape)

    def store(self, layer: int, k: Floats, v: Floats) -> None:
        self._stored = k, v

    def attend(
        self,
        layer: int,
        q: Floats,
        num_heads: int,
        num_kv_heads: int,
        rule: AttentionRule = PLAIN_ATTENTION,
    ) -> Floats:
        if rule != PLAIN_ATTENTION:
            raise UnsupportedModel(f"the labs run plain attention, not {rule}")
        queries = q.reshape(len(q), num_heads, -1)
        k, v = (x.reshape(len(x), num_kv_heads, -1) for x in self._stored)
        return self._session.attend(layer, queries, k, v, self._positions).reshape(q.shape)

    def linear(self, x: Floats, weight: str, bias: str | None = None) -> Floats:
        out = self._session.parts.inputs(x, weight) @ self._forward.matrix(weight).T
        return np.asarray(out if bias is None else out + self._forward.weights.vectors[bias])

    def head(self, x: Floats, weight: str, cap: float | None = None) -> Floats:
        return np.asarray(x @ self._forward.matrix(weight).T, np.float32)

    def normed(self, x: Floats, gain: str) -> Floats:
        """As the `Listener` of the others."""
        return np.asarray(x * self._forward.weights.vectors[gain], np.float32)


def _turns(rope: RopeSpec, positions: Ints) -> tuple[Floats, Floats]:
    """cos and sin (t, 1, D/2)."""
    angles = positions[:, None, None] * np.asarray(rope.inverse_frequencies)
    factor = rope.attention_factor
    return (
        (np.cos(angles) * factor).astype(np.float32),
        (np.sin(angles) * factor).astype(np.float32),
    )


def open_forward(model: Path) -> Forward:
    """Raises as a load does; UnsupportedModel where attention is more than softmax of scores."""
    with closing(open_checkpoint(model)) as checkpoint:
        spec = read_spec(checkpoint)
        family = families.family(spec)
        weights = Weights()
        load(checkpoint, family.slots(spec), family.gguf_layout, weights, "none")
        forward = Forward(spec, read_tokenizer(checkpoint), weights, {})
        for name in weights.sources:
            forward.matrix(name)
        return forward
