"""Faults to put in on purpose, so that the proof is seen to see.

Owns: the faults, each with what it breaks.
May not know: how the proof looks for them.
Read next: `parity.py`.

`split-by-batch` is the fault that engines have: a kernel that splits a sum when there is more to
do, so that the order of the sum depends on who else is there. Nothing in the kernels can do so;
it is built from the operators. One linear layer x · W becomes (x · A) · W + (x · B) · W, where A
and B pass every second value of x (diagonals of ones and zeros: exact), in a second plan over the
same weights, and a step with more than one sequence takes that plan. A format that rounds x rounds
each half on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.checks import check_choice
from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Held, ModelProgram, OpTime
from firsthand.compute.native._native import Threads
from firsthand.compute.native.executor import NativeExecutor
from firsthand.compute.ops import Ops
from firsthand.errors import InvalidRequest
from firsthand.generation.loading import LoadedModel
from firsthand.kvcache.store import KVStore
from firsthand.models import families
from firsthand.quant.formats import FloatFormat, FloatWeight
from firsthand.values import dataclass

Install = Callable[[LoadedModel], LoadedModel]
HALVES = ("even half", "odd half")


def split_by_batch(loaded: LoadedModel) -> LoadedModel:
    """The loaded model under an executor whose last attention output depends on the batch."""
    whole = loaded.executor
    if not isinstance(whole, NativeExecutor):
        raise InvalidRequest("sabotage", "is for the native executor")
    linear = [op for op in whole.recorded if op.name == "linear"]
    least = min(op.inputs[0].width for op in linear)
    last = [op for op in linear if op.inputs[0].width == least][-1]
    split = whole.beside()
    for number, name in enumerate(HALVES):
        split.load_weight(_Half(name, last.inputs[0].width, number))
    program = families.program(loaded.spec)
    split.prepare(
        replace(program, forward=_split(program, last.weights[0])),
        loaded.limits.max_step_tokens,
        loaded.max_logit_rows,
    )
    return replace(loaded, executor=SplitByBatch(whole, split))


SABOTAGES: dict[str, Install] = {"split-by-batch": split_by_batch}


def sabotaged(name: str | None) -> Install:
    """What puts the fault of that name in; for None, nothing. Raises InvalidRequest."""
    if name is None:
        return lambda loaded: loaded
    check_choice("sabotage", name, tuple(SABOTAGES))
    return SABOTAGES[name]


class SplitByBatch:
    """An `Executor` over two plans; which one runs depends on the number of sequences."""

    name = "native"

    def __init__(self, whole: NativeExecutor, split: NativeExecutor) -> None:
        self._whole = whole
        self._split = split
        self._last = whole  # which of them ran
        self.load_weight = whole.load_weight
        self.load_vector = whole.load_vector
        self.alias = whole.alias
        self.prepare = whole.prepare
        self.add_adapter = whole.add_adapter

    @property
    def pool(self) -> Threads:
        return self._whole.pool

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        self._last = self._plan_for(batch)
        return self._last.run(batch, store)

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        return self._last.logits(rows)

    def hidden(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        return self._last.hidden(rows)

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        return self._plan_for(batch).trace(batch, store)

    def memory(self) -> Held:
        return self._whole.memory()

    def _plan_for(self, batch: FlatBatch) -> NativeExecutor:
        return self._whole if batch.num_sequences == 1 else self._split


def _split(program: ModelProgram, weight: str) -> Callable[[Ops[Any]], Any]:
    def forward(ops: Ops[Any]) -> Any:
        return program.forward(_SplitOps(ops, weight))

    return forward


class _SplitOps:
    """An `Ops` that splits one linear layer; all else is handed on."""

    def __init__(self, ops: Ops[Any], weight: str) -> None:
        self._ops = ops
        self._weight = weight

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def linear(self, x: Any, weight: str, bias: str | None = None) -> Any:
        ops = self._ops
        if weight != self._weight:
            return ops.linear(x, weight, bias)
        first, second = (ops.linear(x, half) for half in HALVES)
        return ops.add(ops.linear(first, weight, bias), ops.linear(second, weight))


@dataclass(frozen=True, slots=True)
class _Half:
    """A `WeightSource`: the diagonal (K, K) that passes every second value of a row."""

    name: str
    width: int
    number: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.width, self.width

    @property
    def format(self) -> FloatFormat:
        return FloatFormat("float32")

    def rows(self, start: int, stop: int) -> FloatWeight:
        values = np.zeros((stop - start, self.width), dtype=np.float32)
        passed = [row for row in range(start, stop) if row % 2 == self.number]
        values[[row - start for row in passed], passed] = 1.0
        return FloatWeight(self.format, values)

    def release(self) -> None:
        """Nothing is held."""
