"""The reference executor: weights as plain floats, operators as plain torch, on CPU or CUDA.

Owns: the decoded weights, and the order check, run, hand back.
May not know: the engine, scheduling, files, any one architecture.
Read next: `ops.py`; then `compiled.py`, the same by torch.compile.

It promises the formula to a stated error, not equal bits: that is the native executor's promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from firsthand.checks import check_choice
from firsthand.compute.batch import FlatBatch
from firsthand.compute.buckets import CompileFacts
from firsthand.compute.executor import Held, ModelProgram, OpTime, ProfiledStep, check_batch
from firsthand.compute.ops import ADAPTED, Ops
from firsthand.compute.plan import record
from firsthand.compute.torch.attention import ATTENTIONS, AttentionName
from firsthand.compute.torch.compiled import Around, CompiledSteps, check_compiler
from firsthand.compute.torch.deterministic import deterministic_algorithms
from firsthand.compute.torch.ops import Rotation, TorchOps, rotation
from firsthand.compute.torch.profiling import profile_step, start_profiler_here
from firsthand.compute.torch.ranges import RangedOps
from firsthand.compute.torch.trace import TracedOps
from firsthand.errors import EngineError, InvalidRequest, UnsupportedModel
from firsthand.kvcache.store import KVStore
from firsthand.quant.formats import WeightSource, decode, row_blocks
from firsthand.quant.low_rank import LowRank

DTypeName = Literal["float32", "float64"]


class TorchExecutor:
    """`Executor` in plain torch. `attention` picks one of three ways to the same values.

    float64 is there for tests that need an answer better than float32. The logits have the
    chosen type. `buckets`: compile the rows of a step that fits one of these; see `compiled.py`.
    `deterministic`: let torch use deterministic algorithms only; see `deterministic.py`.
    Raises InvalidRequest when an option is unknown, CUDA is not there, or torch cannot compile.
    """

    def __init__(
        self,
        device: str = "cpu",
        attention: AttentionName = "fast",
        dtype: DTypeName = "float32",
        buckets: tuple[int, ...] = (),
        deterministic: bool = False,
    ) -> None:
        check_choice("attention", attention, get_args(AttentionName))
        check_choice("dtype", dtype, get_args(DTypeName))
        self._device = _device(device)
        self._attention = ATTENTIONS[attention]
        self._dtype = torch.float32 if dtype == "float32" else torch.float64
        self._sizes = buckets
        self._scope = deterministic_algorithms if deterministic else nullcontext
        # On CUDA alone: elsewhere nobody could see them.
        self._range_of = torch.cuda.nvtx.range if self._device.type == "cuda" else None
        self._weights: dict[str, torch.Tensor] = {}
        self._adapters: dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]] = {}
        self._program: ModelProgram | None = None
        self._compiled: CompiledSteps | None = None
        self._last: TorchOps | None = None  # of the last run, which `logits` and `hidden` look into
        self._profiled: list[ProfiledStep] | None = None
        self._max_tokens = 0
        self._max_logit_rows = 0
        if buckets:
            check_compiler(self._device)

    @property
    def name(self) -> str:
        return "torch"

    def load_weight(self, source: WeightSource) -> None:
        n, k = source.shape
        values = torch.empty((n, k), dtype=self._dtype, device=self._device)
        for start, stop in row_blocks(n, k):
            block = decode(source.rows(start, stop))
            values[start:stop] = torch.tensor(block, dtype=self._dtype)
        source.release()
        self._weights[source.name] = values

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        self._weights[name] = torch.tensor(values, dtype=self._dtype, device=self._device)

    def alias(self, name: str, target: str) -> None:
        self._weights[name] = self._weights[target]

    def prepare(self, program: ModelProgram, max_tokens: int, max_logit_rows: int) -> None:
        self._program = program
        self._adapters = {}
        self._max_tokens = max_tokens
        self._max_logit_rows = max_logit_rows
        if self._sizes:
            plan = record(program.forward, self._shape_of)
            self._compiled = CompiledSteps(plan, self._weights, self._sizes)

    def add_adapter(self, name: str, factors: Sequence[LowRank]) -> None:
        if self._program is None:
            raise EngineError("prepare() comes before an adapter")
        ops = record(self._program.forward, self._shape_of)
        layers = {name for op in ops if op.name in ADAPTED for name in op.weights}
        for one in factors:
            if one.weight not in layers:
                raise UnsupportedModel(f"{one.weight} takes no adapter: it is no linear layer")

        def held(values: NDArray[np.float32]) -> torch.Tensor:
            return torch.tensor(values, dtype=self._dtype, device=self._device)

        self._adapters[name] = {one.weight: (held(one.a), held(one.b)) for one in factors}

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        with torch.inference_mode(), self._scope():
            program = self._checked_program(batch)
            turns = self._turns(program, batch)
            ops = self._last = self._ops(batch, store, turns)
            if self._compiled is not None:
                self._compiled.count(batch.num_tokens)
            if self._range_of is None:
                return self._forward(program, batch, ops, turns)
            ranged = RangedOps(ops, self._range_of)
            return self._forward(program, batch, ranged, turns, ranged.piece)

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        with torch.inference_mode(), self._scope():
            if len(rows) > self._max_logit_rows:
                raise EngineError(f"{len(rows)} rows; at most {self._max_logit_rows}")
            return _to_numpy(self._ran().logits(self._rows(rows)))

    def hidden(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        with torch.inference_mode(), self._scope():
            return _to_numpy(self._ran().hidden(self._rows(rows))).astype(np.float32)

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        """A compiled piece is one entry. Inside `profile_traces`, under torch's profiler too."""
        with torch.inference_mode(), self._scope():
            program = self._checked_program(batch)
            turns = self._turns(program, batch)
            ops: Ops[torch.Tensor] = self._ops(batch, store, turns)
            if self._profiled is not None:
                ranged = RangedOps(ops, torch.profiler.record_function)
                step = profile_step(
                    lambda: self._forward(program, batch, ranged, turns, ranged.piece), self._device
                )
                self._profiled.append(step)
            traced = TracedOps(ops, batch, store, self._weights, self._device)
            return self._forward(program, batch, traced, turns, traced.piece), traced.times

    @contextmanager
    def profile_traces(self) -> Iterator[list[ProfiledStep]]:
        start_profiler_here()
        steps: list[ProfiledStep] = []
        self._profiled = steps
        try:
            yield steps
        finally:
            self._profiled = None

    def compiled_steps(self) -> CompileFacts | None:
        return None if self._compiled is None else self._compiled.facts()

    def memory(self) -> Held:
        tensors = [*self._weights.values()]
        tensors += [one for by in self._adapters.values() for pair in by.values() for one in pair]
        held = {id(tensor): tensor.nbytes for tensor in tensors}
        return Held(weights_bytes=sum(held.values()), scratch_bytes=0)

    def _forward(
        self,
        program: ModelProgram,
        batch: FlatBatch,
        ops: Ops[torch.Tensor],
        turns: Sequence[Rotation],
        around: Around | None = None,
    ) -> NDArray[np.float32]:
        """The logits: in a bucket if there is one for the step, else operator by operator. So is a
        step with an adapter: a graph knows none."""
        num_tokens = batch.num_tokens
        bucket = None
        if self._compiled is not None and not batch.adapters:
            bucket = self._compiled.bucket(num_tokens)
        if self._compiled is None or bucket is None:
            return _to_numpy(program.forward(ops))
        return _to_numpy(self._compiled.run(bucket, ops, turns, num_tokens, around))

    def _ops(self, batch: FlatBatch, store: KVStore, turns: Sequence[Rotation]) -> TorchOps:
        return TorchOps(batch, store, self._weights, turns, self._attention, self._adapters)

    def _turns(self, program: ModelProgram, batch: FlatBatch) -> list[Rotation]:
        return [
            rotation(batch.positions, rope, self._dtype, self._device) for rope in program.ropes
        ]

    def _ran(self) -> TorchOps:
        if self._last is None:
            raise EngineError("rows were asked for before the executor was run")
        return self._last

    def _rows(self, rows: NDArray[np.int32]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self._device)

    def _shape_of(self, name: str) -> tuple[int, int]:
        n, k = self._weights[name].shape
        return int(n), int(k)

    def _checked_program(self, batch: FlatBatch) -> ModelProgram:
        """A wrong index would read another sequence's memory, and on CUDA end the process."""
        program = self._program
        if program is None:
            raise EngineError("the executor was run before it was prepared")
        limits = (self._max_tokens, self._max_logit_rows)
        check_batch(batch, program, limits, self._adapters)
        return program


def _device(name: str) -> torch.device:
    check_choice("device", name, ("cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device", "'cuda' was asked for, but torch finds no CUDA device")
    return torch.device(name)


def _to_numpy(logits: torch.Tensor) -> NDArray[Any]:
    return np.asarray(logits.cpu().numpy())
