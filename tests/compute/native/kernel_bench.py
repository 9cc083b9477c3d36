"""One small plan on made rows, for tests of single kernels.

Owns: `Bench`, and how a result is held against its float64 formula.
May not know: formulas. Read next: `test_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.executor import ModelProgram
from firsthand.compute.native.executor import NativeExecutor
from firsthand.compute.ops import Ops
from firsthand.kvcache.arrays import KVLayout, KVType
from firsthand.kvcache.paged import PagedStore
from firsthand.quant.formats import FloatFormat, FloatWeight, Weight
from tests.compute.native.micro import MicroModel, Source, batch, spec

U = 2.0**-24  # half a unit in the last place of 1: one rounding
MAX_ROWS = 17
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Forward = Callable[[Ops[Any], Any], Any]


def floats(values: NDArray[Any]) -> FloatWeight:
    return FloatWeight(FloatFormat("float32"), np.ascontiguousarray(values, np.float32))


class Bench:
    """An executor whose model is `forward(ops, x)`: its input rows are those of an embedding table,
    its result goes through a head that is the identity. Neither rounds anything."""

    def __init__(
        self,
        forward: Forward,
        x: Floats,
        width: int,
        weights: dict[str, Weight] | None = None,
        vectors: dict[str, Floats] | None = None,
        *,
        head_size: int = 2,
        num_kv_heads: int = 1,
        factor: float = 1.0,
        **options: Any,
    ) -> None:
        rows, k = x.shape
        vocab = max(rows, width)
        table = np.zeros((vocab, k), np.float32)
        table[:rows] = x
        loaded = dict(weights or {}) | {
            "table": floats(table),
            "identity": floats(np.eye(vocab, width)),
            "nothing": floats(np.zeros((head_size, k))),
        }
        model = spec(num_layers=1, num_kv_heads=num_kv_heads, head_size=head_size)

        def program(ops: Ops[Any]) -> Any:
            value = ops.embed("table")
            if num_kv_heads == 1:  # a plan without a store cannot be bound to one
                nothing = ops.linear(value, "nothing")
                ops.store(0, nothing, nothing)
            return ops.head(forward(ops, value), "identity")

        self._executor = NativeExecutor(**options)
        for name, weight in loaded.items():
            self._executor.load_weight(Source(name, weight))
        for name, values in (vectors or {}).items():
            self._executor.load_vector(name, values)
        self._executor.prepare(
            ModelProgram(
                forward=program,
                vocab_size=vocab,
                width=k,
                num_layers=1,
                num_heads=model.num_heads,
                num_kv_heads=num_kv_heads,
                head_size=head_size,
                ropes=(replace(model.rope, attention_factor=factor),),
                context_length=model.context_length,
            ),
            max(rows, 1),
            max(rows, 1),
        )
        self._model = MicroModel(model, {}, {})
        self._width, self._rows = width, rows

    def store(
        self, dtype: KVType = "float32", layout: KVLayout = "tiles", block_size: int = 0
    ) -> PagedStore:
        return self._model.store(dtype, layout=layout, block_size=block_size)

    def run(
        self, start: int = 0, stop: int | None = None, store: PagedStore | None = None
    ) -> Floats:
        """Rows start … stop − 1 of the result; row r is at position r."""
        place = self.store() if store is None else store
        ids = np.arange(start, self._rows if stop is None else stop)
        return self._executor.run(batch(place, (1, start, ids)), place)[:, : self._width].copy()


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(got: Floats, want: Doubles, bound: Doubles) -> None:
    assert got.shape == want.shape
    excess = np.abs(got - want) - bound
    assert (excess <= 0).all(), f"{excess.max()} beyond a bound of {bound.flat[excess.argmax()]}"
