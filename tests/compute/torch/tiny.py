"""Tiny models and everything around them, so that an executor can be run without an engine.

Owns: fakes of a weight source and a store, batches, and models with random weights.
May not know: what is tested. Read next: `test_executor.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Executor
from firsthand.kvcache.arrays import TILE, KVLayout, LayerArrays
from firsthand.models.families import program, read_config, slots
from firsthand.models.spec import ModelSpec
from firsthand.quant.formats import FloatFormat, FloatWeight, Format

VOCAB = 61
BLOCK = 5  # divides neither the prompts nor the tile of the attention
NUM_BLOCKS = 64


@dataclass
class ArraySource:
    """A float32 matrix as a weight that can be read in blocks of rows."""

    name: str
    values: NDArray[np.float32]
    released: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def format(self) -> Format:
        return FloatFormat("float32")

    def rows(self, start: int, stop: int) -> FloatWeight:
        return FloatWeight(FloatFormat("float32"), self.values[start:stop])

    def release(self) -> None:
        self.released += 1


class ArrayStore:
    """Blocks of slots in plain arrays, filled with a number that ruins whatever reads it."""

    def __init__(self, spec: ModelSpec, dtype: str = "float32") -> None:
        shape = (-(-NUM_BLOCKS * BLOCK // TILE), TILE, spec.num_kv_heads, spec.head_size)

        def unset() -> NDArray[Any]:
            return np.full(shape, np.nan, dtype)

        self._layers = [
            LayerArrays(unset(), unset(), None, None, "rows") for _ in range(spec.num_layers)
        ]
        self.block_size = BLOCK
        self.num_blocks = NUM_BLOCKS
        self.num_bytes = NUM_BLOCKS * BLOCK * spec.num_layers * self._layers[0].slot_bytes
        self.dtype: Any = np.dtype(dtype)
        self.kv_dtype: Any = dtype
        self.layout: KVLayout = "rows"

    def resident_bytes(self, num_tokens: int) -> int:
        return num_tokens * self.num_bytes // (NUM_BLOCKS * BLOCK)

    def block_start(self, block_id: int) -> int:
        return block_id * BLOCK

    def layer(self, layer: int) -> LayerArrays:
        return self._layers[layer]

    def copy_block(self, source: int, target: int) -> None:
        raise NotImplementedError

    def fill_block(self, block_id: int, byte: int) -> None:
        raise NotImplementedError


@dataclass
class Piece:
    """Tokens of one sequence at start, start + 1, …; blocks in any order."""

    token_ids: Sequence[int]
    start: int = 0
    blocks: Sequence[int] = field(default_factory=lambda: list(range(NUM_BLOCKS))[::-1])


def flat(pieces: Sequence[Piece], last_rows_only: bool = False) -> FlatBatch:
    """The batch of some pieces; logits of every row, or of each piece's last."""
    lengths = [len(piece.token_ids) for piece in pieces]
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    width = max(len(piece.blocks) for piece in pieces)
    table = np.full((len(pieces), width), -1, np.int64)
    for row, piece in enumerate(pieces):
        table[row, : len(piece.blocks)] = np.asarray(piece.blocks) * BLOCK
    positions = [
        np.arange(piece.start, piece.start + n) for piece, n in zip(pieces, lengths, strict=True)
    ]
    rows = ends[1:] - 1 if last_rows_only else np.arange(ends[-1])
    return FlatBatch(
        token_ids=np.concatenate([np.asarray(piece.token_ids, np.int32) for piece in pieces]),
        positions=np.concatenate(positions).astype(np.int32),
        row_starts=ends,
        block_starts=table,
        block_size=BLOCK,
        logit_rows=rows.astype(np.int32),
    )


def config(**changes: Any) -> dict[str, Any]:
    """A Llama that is small and odd: 3 query heads on 1, a head size of its own."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    } | changes


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Every tensor that the model asks for, of a size at which attention is far from even."""
    rng = np.random.default_rng(seed)
    found: dict[str, NDArray[np.float32]] = {}
    for slot in slots(spec):
        if slot.tied_to is None:
            spread = 1.0 if slot.shape[-1] == 1 else 1.5 * slot.shape[-1] ** -0.5
            values = rng.normal(0.0, spread, slot.shape)
            gain = 1.0 if slot.name.endswith("norm.weight") else 0.0
            found[slot.name] = (values + gain).astype(np.float32)
    return found


def load(
    executor: Executor,
    spec: ModelSpec,
    weights: Mapping[str, NDArray[np.float32]],
    max_tokens: int = 512,
) -> None:
    """Weights into an executor under their canonical names, and nothing left over."""
    left = dict(weights)
    for slot in slots(spec):
        if slot.tied_to is not None:
            left.pop(slot.name, None)
            executor.alias(slot.name, slot.tied_to)
            continue
        values = left.pop(slot.name)
        assert values.shape == slot.shape, slot.name
        if values.ndim == 2:
            executor.load_weight(ArraySource(slot.name, values))
        else:
            executor.load_vector(slot.name, values)
    assert not left, f"never asked for: {sorted(left)}"
    executor.prepare(program(spec), max_tokens, max_tokens)


def ready(executor: Any, spec: ModelSpec | None = None, seed: int = 0) -> Any:
    """The executor with random weights in it."""
    spec = spec or read_config(config())
    load(executor, spec, random_weights(spec, seed))
    return executor


def prompt(length: int, seed: int = 1) -> list[int]:
    return [int(x) for x in np.random.default_rng(seed).integers(0, VOCAB, length)]


def whole(executor: Executor, spec: ModelSpec, token_ids: Sequence[int]) -> NDArray[np.float32]:
    """(n, V) the logits of every row, the prompt at once."""
    return executor.run(flat([Piece(token_ids)]), ArrayStore(spec)).copy()


def in_steps(
    executor: Executor, spec: ModelSpec, token_ids: Sequence[int], sizes: Sequence[int]
) -> NDArray[np.float32]:
    """(n, V) the same, computed in steps of these sizes over one store."""
    store, start, found = ArrayStore(spec), 0, []
    for size in sizes:
        piece = Piece(token_ids[start : start + size], start)
        found.append(executor.run(flat([piece]), store).copy())
        start += size
    assert start == len(token_ids)
    return np.concatenate(found)
