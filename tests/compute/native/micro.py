"""A random micro-model in every weight format, and its float64 formula to compare with.

Owns: weights for a given spec, and the transformer written once more in plain float64 numpy.
May not know: the executor under test. Read next: `test_executor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Executor
from firsthand.compute.native import _native
from firsthand.kvcache.arrays import KVLayout, KVType
from firsthand.kvcache.paged import PagedStore
from firsthand.models import families
from firsthand.models.spec import ModelSpec, RopeSpec
from firsthand.quant.formats import (
    ChannelFormat,
    ChannelWeight,
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    Weight,
    decode,
)

EMBEDDING = "model.embed_tokens.weight"
FORMATS: dict[str, Format] = {
    "float32": FloatFormat("float32"),
    "float16": FloatFormat("float16"),
    "bfloat16": FloatFormat("bfloat16"),
    "channel": ChannelFormat(),
    "q4_0": GroupedFormat(4, 32, "float16", has_minimum=False, zero=8),
    "q4_1": GroupedFormat(4, 32, "float16", has_minimum=True),
    "q2_k": GroupedFormat(4, 16, "float32", has_minimum=True),
    "q8_0": GroupedFormat(8, 32, "float16", has_minimum=False),
    "q5_1": GroupedFormat(8, 32, "float16", has_minimum=True),
    "q6_k": GroupedFormat(8, 16, "float32", has_minimum=False),
    "q5_k": GroupedFormat(8, 32, "float32", has_minimum=True),
}


def error_of(name: str) -> float:
    """How far logits may be from the float64 formula, relative. Floats differ by their own
    rounding. Groups round each row to 16 bits first; int8 per channel to 8 bits of what is usual:
    a step is about 0.02 of the root mean square."""
    if name.startswith(("float", "bfloat")):
        return 1e-6
    return 4e-2 if name == "channel" else 3e-4


@dataclass(frozen=True, slots=True)
class Source:
    """A `WeightSource` over a weight that is already in memory."""

    name: str
    weight: Weight

    @property
    def format(self) -> Format:
        return self.weight.format

    @property
    def shape(self) -> tuple[int, int]:
        codes = self.weight.values if isinstance(self.weight, FloatWeight) else self.weight.codes
        return int(codes.shape[0]), int(codes.shape[1])

    def rows(self, start: int, stop: int) -> Weight:
        match self.weight:
            case FloatWeight(format, values):
                return FloatWeight(format, values[start:stop])
            case ChannelWeight(format, codes, scales):
                return ChannelWeight(format, codes[start:stop], scales[start:stop])
            case GroupedWeight(format, codes, scales, minima):
                cut = None if minima is None else minima[start:stop]
                return GroupedWeight(format, codes[start:stop], scales[start:stop], cut)

    def release(self) -> None:
        pass


def spec(**changes: Any) -> ModelSpec:
    """Three layers with odd sizes: 6 heads in 3 groups of a width that is no multiple of 16."""
    head_size = changes.get("head_size", 16)
    frequencies = tuple(10000.0 ** (-2 * i / head_size) for i in range(head_size // 2))
    values: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 101,
        "num_layers": 3,
        "width": 40,
        "num_heads": 6,
        "num_kv_heads": 3,
        "head_size": head_size,
        "ffn_width": 72,
        "norm_eps": 1e-5,
        "rope": RopeSpec("default", frequencies),
        "context_length": 200,
        "tied_head": True,
    }
    return ModelSpec(**(values | changes))


def random_weight(rng: np.random.Generator, n: int, k: int, format: Format) -> Weight:
    """Values of a size that keeps the micro-model's residual stream near 1."""
    match format:
        case FloatFormat(dtype):
            values = rng.standard_normal((n, k)).astype(np.float32) * np.float32(k**-0.5)
            if dtype == "bfloat16":
                return FloatWeight(format, (values.view(np.uint32) >> 16).astype(np.uint16))
            return FloatWeight(format, values.astype(dtype))
        case ChannelFormat():
            codes = rng.integers(-127, 128, (n, k), dtype=np.int8)
            scales = rng.uniform(0.5, 1.5, n).astype(np.float32) * np.float32(k**-0.5 / 73)
            return ChannelWeight(format, codes, scales)
        case GroupedFormat(bits, group, scale_dtype, has_minimum):
            groups = -(-k // group)
            low, high, spread = (0, 16, 4.6) if bits == 4 else (-128, 128, 73.0)
            kind = np.uint8 if bits == 4 else np.int8
            codes = rng.integers(low, high, (n, k)).astype(kind)
            size = k**-0.5 / spread
            scales = (rng.uniform(-1.5, 1.5, (n, groups)) * size).astype(scale_dtype)
            minima = (rng.uniform(-7, 7, (n, groups)) * size).astype(scale_dtype)
            return GroupedWeight(format, codes, scales, minima if has_minimum else None)


@dataclass(frozen=True, slots=True)
class MicroModel:
    """A spec with its weights by canonical name."""

    spec: ModelSpec
    weights: dict[str, Weight]
    vectors: dict[str, NDArray[np.float32]]

    @classmethod
    def random(cls, spec: ModelSpec, format: Format, seed: int = 0) -> MicroModel:
        rng = np.random.default_rng(seed)
        weights: dict[str, Weight] = {}
        vectors = {}
        for slot in families.slots(spec):
            if len(slot.shape) == 1:
                middle = 0.0 if slot.name.endswith(".bias") else 1.0
                values = middle + rng.standard_normal(slot.shape[0]) * 0.1
                vectors[slot.name] = values.astype(np.float32)
            elif slot.tied_to is None:
                weights[slot.name] = random_weight(rng, slot.shape[0], slot.shape[1], format)
        return cls(spec, weights, vectors)

    def load(self, executor: Executor, max_tokens: int = 128) -> None:
        for name, weight in self.weights.items():
            executor.load_weight(Source(name, weight))
        for name, values in self.vectors.items():
            executor.load_vector(name, values)
        if self.spec.tied_head:
            executor.alias("lm_head.weight", EMBEDDING)
        executor.prepare(families.program(self.spec), max_tokens, max_tokens)

    def store(
        self,
        dtype: KVType = "float32",
        num_sequences: int = 3,
        layout: KVLayout = "tiles",
        block_size: int = 0,
    ) -> PagedStore:
        """One block per sequence, unless a block size is given."""
        s = self.spec
        whole = -(-s.context_length // 16) * 16
        size = block_size or whole
        return PagedStore(
            s.num_layers,
            s.num_kv_heads,
            s.head_size,
            num_blocks=num_sequences * -(-whole // size),
            block_size=size,
            kv_dtype=dtype,
            layout=layout,
        )

    def logits(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """(T, V) the formula in float64, over the decoded weights."""
        s = self.spec
        x = self._matrix(EMBEDDING)[ids]
        for layer in range(s.num_layers):
            prefix = f"model.layers.{layer}"
            x = x + self._attention(self._norm(x, f"{prefix}.input_layernorm.weight"), prefix)
            h = self._norm(x, f"{prefix}.post_attention_layernorm.weight")
            gate = self._linear(h, f"{prefix}.mlp.gate_proj")
            up = self._linear(h, f"{prefix}.mlp.up_proj")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, f"{prefix}.mlp.down_proj")
        head = EMBEDDING if s.tied_head else "lm_head.weight"
        return self._norm(x, "model.norm.weight") @ self._matrix(head).T

    def _matrix(self, name: str) -> NDArray[np.float64]:
        return decode(self.weights[name]).astype(np.float64)

    def _linear(self, x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        bias = self.vectors.get(f"{name}.bias", np.zeros(1, np.float32)).astype(np.float64)
        return x @ self._matrix(f"{name}.weight").T + bias

    def _norm(self, x: NDArray[np.float64], gain: str) -> NDArray[np.float64]:
        scale = np.sqrt((x * x).mean(1, keepdims=True) + self.spec.norm_eps)
        return np.asarray(x / scale * self.vectors[gain], np.float64)

    def _attention(self, h: NDArray[np.float64], prefix: str) -> NDArray[np.float64]:
        s = self.spec
        num_tokens, half = h.shape[0], s.head_size // 2
        angles = np.outer(np.arange(num_tokens), s.rope.inverse_frequencies)[:, None]
        cos, sin = np.cos(angles), np.sin(angles)

        def heads(name: str, num: int, *, rope: bool) -> NDArray[np.float64]:
            x = self._linear(h, f"{prefix}.self_attn.{name}").reshape(num_tokens, num, -1)
            if rope:
                a, b = x[..., :half], x[..., half:]
                x = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
            return np.repeat(x, s.num_heads // num, axis=1)

        q = heads("q_proj", s.num_heads, rope=True)
        k, v = (heads(f"{n}_proj", s.num_kv_heads, rope=n == "k") for n in "kv")
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(s.head_size)
        scores = np.where(np.tri(num_tokens, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(num_tokens, -1)
        return self._linear(mixed, f"{prefix}.self_attn.o_proj")


def batch(
    store: PagedStore, *slices: tuple[int, int, NDArray[np.int64]], wanted: str = "all"
) -> FlatBatch:
    """A batch of (row of the store, start, token ids) per sequence; logits of `all` or `last`."""
    counts = [len(ids) for _, _, ids in slices]
    ends = np.cumsum(counts)
    rows = np.arange(ends[-1]) if wanted == "all" else ends - 1
    return FlatBatch(
        token_ids=np.concatenate([ids for _, _, ids in slices]).astype(np.int32),
        positions=np.concatenate(
            [np.arange(start, start + len(ids)) for _, start, ids in slices]
        ).astype(np.int32),
        row_starts=np.concatenate([[0], ends]).astype(np.int32),
        block_starts=np.array([_table(store, row) for row, _, _ in slices], np.int64),
        block_size=store.block_size,
        logit_rows=rows.astype(np.int32),
    )


def _table(store: PagedStore, row: int) -> list[int]:
    """Where the blocks of a sequence begin: any order will do, here from the last to the first."""
    size = store.num_blocks // 3
    return [store.block_start(row * size + block) for block in reversed(range(size))]


def run_whole(
    executor: Executor,
    model: MicroModel,
    ids: NDArray[np.int64],
    chunks: tuple[int, ...] = (),
    dtype: KVType = "float32",
    layout: KVLayout = "tiles",
    block_size: int = 0,
) -> NDArray[np.float32]:
    """(T, V) logits of one sequence, computed in the given chunks (default: all at once)."""
    store = model.store(dtype, layout=layout, block_size=block_size)
    parts = []
    start = 0
    for count in chunks or (len(ids),):
        piece = batch(store, (1, start, ids[start : start + count]))
        parts.append(executor.run(piece, store).copy())
        start += count
    assert start == len(ids)
    return np.concatenate(parts)


def instruction_sets() -> list[str]:
    """Those that this machine runs."""
    found = []
    for name in ("portable", "avx2", "avx512"):
        try:
            found.append(_native.isa(name))
        except ValueError:
            continue
    return found
