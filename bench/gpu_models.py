"""Models of a given shape with made-up weights, loaded the way real ones are; and steps over them.

Owns: the shapes, the weights, the batches.
May not know: what is measured.
Read next: `gpu.py`.

A weight is one random block of rows, repeated: the way to the card is the real one, and making the
numbers takes no time. What is computed from them means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from firsthand.compute.batch import FlatBatch
from firsthand.models import families
from firsthand.models.spec import ModelSpec, RopeSpec
from firsthand.quant.formats import (
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    Weight,
)

BLOCK = 16
FORMATS: dict[str, Format] = {
    "float16": FloatFormat("float16"),
    "int4": GroupedFormat(4, 32, "float16", has_minimum=True),
}


@dataclass(frozen=True)
class Shape:
    """What a model of this shape is like, and how it is asked."""

    width: int
    ffn_width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    context: int  # tokens that a decoded row looks back on
    max_tokens: int  # of a step
    rows: tuple[int, ...]


SHAPES = {
    "1b": Shape(2048, 8192, 16, 32, 8, 64, 128256, 512, 2048, (1, 16, 64)),
    "7b": Shape(4096, 14336, 32, 32, 8, 128, 32000, 512, 2048, (1, 16, 64)),
    "smoke": Shape(32, 48, 1, 2, 1, 16, 64, 10, 4, (1, 2)),
}


def spec_of(shape: Shape) -> ModelSpec:
    half = shape.head_size // 2
    frequencies = tuple(10000.0 ** (-i / half) for i in range(half))
    return ModelSpec(
        architecture="llama",
        vocab_size=shape.vocab_size,
        num_layers=shape.num_layers,
        width=shape.width,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        ffn_width=shape.ffn_width,
        norm_eps=1e-5,
        rope=RopeSpec("default", frequencies),
        context_length=max(shape.context, shape.max_tokens) + BLOCK,
        tied_head=False,
    )


@dataclass(frozen=True)
class Made:
    """A `WeightSource` of any size."""

    name: str
    shape: tuple[int, int]
    format: Format
    block: Weight

    def rows(self, start: int, stop: int) -> Weight:
        at = np.arange(start, stop) % rows_of(self.block)
        match self.block:
            case FloatWeight(format, values):
                return FloatWeight(format, values[at])
            case GroupedWeight(format, codes, scales, minima):
                assert minima is not None
                return GroupedWeight(format, codes[at], scales[at], minima[at])
        raise ValueError("of this form none is made")

    def release(self) -> None:
        pass


def rows_of(weight: Weight) -> int:
    return len(weight.values if isinstance(weight, FloatWeight) else weight.codes)


def made_block(k: int, format: Format) -> Weight:
    """67 rows, which divides nothing: no two outputs next to each other are alike."""
    made, n = np.random.default_rng(k), 67
    if isinstance(format, GroupedFormat):
        groups = -(-k // format.group)
        codes = made.integers(0, 16, (n, k), dtype=np.uint8)
        size = k**-0.5 / 4.6
        scales = np.full((n, groups), size, np.float16)
        return GroupedWeight(format, codes, scales, np.full_like(scales, -7.5 * size))
    values = made.standard_normal((n, k), dtype=np.float32) * np.float32(k**-0.5)
    return FloatWeight(FloatFormat("float16"), values.astype(np.float16))


def fill(executor: Any, shape: Shape, format: str) -> int:
    """Load every weight and prepare; the number of parameters that a token meets. Embedding and
    head are float16 in either format."""
    spec = spec_of(shape)
    blocks: dict[tuple[int, str], Weight] = {}
    met = 0
    for slot in families.slots(spec):
        if len(slot.shape) == 1:
            executor.load_vector(slot.name, np.ones(slot.shape, np.float32))
            continue
        held = FORMATS["float16" if slot.is_head else format]
        block = blocks.setdefault((slot.shape[1], str(held)), made_block(slot.shape[1], held))
        executor.load_weight(Made(slot.name, (slot.shape[0], slot.shape[1]), held, block))
        met += 0 if slot.name.startswith("model.embed") else slot.shape[0] * slot.shape[1]
    executor.prepare(families.program(spec), shape.max_tokens, max(shape.rows))
    return met


def new_store(executor: Any, shape: Shape) -> Any:
    """Zeros: a step may look back on what none wrote."""
    store = executor.new_store(max(shape.rows) * blocks_of(shape), BLOCK, "float16")
    for layer in range(shape.num_layers):
        memory = store.memory(layer)
        memory.keys.zero_()
        memory.values.zero_()
    return store


def blocks_of(shape: Shape) -> int:
    """Of one sequence."""
    return -(-spec_of(shape).context_length // BLOCK)


def batch_of(shape: Shape, pieces: list[tuple[int, int, int]], seed: int = 0) -> FlatBatch:
    """(sequence, first position, number of tokens) each; a token depends on where it stands."""
    per = blocks_of(shape)
    counts = [count for _, _, count in pieces]
    ends = np.cumsum([0, *counts])
    positions = [np.arange(start, start + count) for _, start, count in pieces]
    ids = [
        (at * 7 + which * 31 + seed) % shape.vocab_size
        for (which, _, _), at in zip(pieces, positions, strict=True)
    ]
    tables = [(which * per + np.arange(per)) * BLOCK for which, _, _ in pieces]
    return FlatBatch(
        token_ids=np.concatenate(ids).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        row_starts=ends.astype(np.int32),
        block_starts=np.array(tables, np.int64),
        block_size=BLOCK,
        logit_rows=(ends[1:] - 1).astype(np.int32),
    )


def decoding(shape: Shape, rows: int) -> FlatBatch:
    """One token of so many sequences, each at the end of its context."""
    return batch_of(shape, [(which, shape.context - 1, 1) for which in range(rows)])
