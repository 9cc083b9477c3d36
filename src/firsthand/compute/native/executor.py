"""The default executor: packs weights, records and fuses the plan once, replays it for each batch.

Owns: how a weight is packed, and how a step of the plan becomes a call of `_native`.
May not know: models, scheduling, files.
Read next: `csrc/module.cpp` (the border), `csrc/plan.cpp` (the replay).

Memory per position and step is fixed at `prepare`; `run` allocates nothing in C++.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import ModelProgram, OpTime
from firsthand.compute.fusion import fuse
from firsthand.compute.native import _native
from firsthand.compute.plan import Step, Value, lay_out, record
from firsthand.errors import EngineError, InvalidRequest, UnsupportedModel
from firsthand.kvcache.store import KVStore
from firsthand.quant.formats import (
    ChannelFormat,
    ChannelWeight,
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    Weight,
    WeightSource,
    row_blocks,
)

MAX_HEAD_SIZE = 512
MAX_THREADS = 256


def available_threads() -> int:
    """The cores that this process may really use: its affinity, and the cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_cores("/sys/fs/cgroup/cpu.max")
    return max(1, min(cores or 1, quota or MAX_THREADS, MAX_THREADS))


def _cgroup_cores(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


class NativeExecutor:
    """See `compute/executor.py`. `threads` None takes every core that the process may use."""

    name = "native"

    def __init__(
        self, *, threads: int | None = None, disabled_rules: Collection[str] = (), isa: str = ""
    ) -> None:
        count = available_threads() if threads is None else threads
        if not 1 <= count <= MAX_THREADS:
            raise InvalidRequest("threads", f"must be at least 1 and at most {MAX_THREADS}")
        fuse([], disabled_rules)
        try:
            self.isa = _native.isa(isa)
        except ValueError as error:
            raise InvalidRequest("FIRSTHAND_ISA", str(error)) from None
        self._threads = _native.Threads(count)
        self._disabled_rules = tuple(disabled_rules)
        self._weights: dict[str, _native.PackedWeight] = {}
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._plan: _native.Plan | None = None
        self._bound: KVStore | None = None
        self.recorded: list[Step] = []
        self.steps: list[Step] = []

    @property
    def threads(self) -> int:
        return self._threads.count

    def load_weight(self, source: WeightSource) -> None:
        n, k = source.shape
        packed = _packed(source.format, n, k)
        for start, stop in row_blocks(n, k):
            _fill(packed, start, source.rows(start, stop))
        source.release()
        self._weights[source.name] = packed

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        self._vectors[name] = np.array(values, dtype=np.float32)

    def alias(self, name: str, target: str) -> None:
        if target in self._weights:
            self._weights[name] = self._weights[target]
        else:
            self._vectors[name] = self._vectors[target]

    def prepare(self, program: ModelProgram, max_tokens: int, max_logit_rows: int) -> None:
        if program.head_size % 2 or program.head_size > MAX_HEAD_SIZE:
            raise UnsupportedModel(
                f"head size {program.head_size}: must be even and at most {MAX_HEAD_SIZE}"
            )
        self.recorded = record(program.forward, self._shape_of)
        self.steps = fuse(self.recorded, self._disabled_rules)
        cosine, sine = rope_table(program)
        plan = _native.Plan(
            max_tokens,
            max_logit_rows,
            program.vocab_size,
            program.head_size,
            cosine,
            sine,
            self._threads,
            self.isa,
        )
        layout = lay_out(self.steps, max_tokens)
        buffers = {
            value: plan.add_buffer(offset, value.width) for value, offset in layout.offsets.items()
        }
        for step in self.steps:
            self._lower(plan, step, buffers)
        plan.finish()
        self._plan = plan
        self._bound = None

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        return self._replay(batch, store, trace=False)[0]

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        logits, times = self._replay(batch, store, trace=True)
        entries = [
            OpTime(step.op, str(step), _shape(step, batch), ms, self._bytes_of(step))
            for step, ms in zip(self.steps, times, strict=True)
        ]
        return logits, entries

    def memory(self) -> dict[str, int]:
        distinct = {id(weight): weight for weight in self._weights.values()}
        vectors = {id(vector): vector.nbytes for vector in self._vectors.values()}
        return {
            "weights": sum(w.num_bytes for w in distinct.values()) + sum(vectors.values()),
            "scratch": self._plan.scratch_bytes if self._plan is not None else 0,
        }

    def _replay(
        self, batch: FlatBatch, store: KVStore, *, trace: bool
    ) -> tuple[NDArray[np.float32], list[float]]:
        plan = self._plan
        if plan is None:
            raise EngineError("prepare() comes before run()")
        if store is not self._bound:
            layers = range(1 + max(step.layer for step in self.steps))
            keys = [store.keys(layer) for layer in layers]
            plan.bind_store(keys, [store.values(layer) for layer in layers], keys[0].shape[2])
            self._bound = store
        try:
            return plan.run(
                batch.token_ids,
                batch.positions,
                batch.row_starts,
                batch.block_starts,
                batch.block_size,
                batch.logit_rows,
                trace,
            )
        except ValueError as error:
            raise EngineError(str(error)) from error

    def _shape_of(self, name: str) -> tuple[int, int]:
        weight = self._weights[name]
        return weight.n, weight.k

    def _bytes_of(self, step: Step) -> int:
        return sum(self._weights[name].num_bytes for name in step.weights if step.op != "embed")

    def _lower(self, plan: _native.Plan, step: Step, buffers: dict[Value, int]) -> None:
        """Hand one step to C++."""
        inputs = [buffers[value] for value in step.inputs]
        outputs = [buffers[value] for value in step.outputs if not value.is_logits]
        match step.op:
            case "embed":
                plan.embed(self._weights[step.weights[0]], outputs[0])
            case "norm":
                gain, eps = step.norm or ("", 0.0)
                plan.norm(inputs[0], self._vectors[gain], eps, outputs[0])
            case "linear" | "head":
                self._lower_linear(plan, step, inputs[0], outputs, buffers)
            case "rope":
                plan.rope(inputs[0], step.num_heads, outputs[0])
            case "store":
                plan.store(step.layer, inputs[0], inputs[1], step.rotate)
            case "attend":
                plan.attend(
                    step.layer,
                    inputs[0],
                    outputs[0],
                    step.num_heads,
                    step.num_kv_heads,
                    step.rotate,
                )
            case "activation":
                plan.activation(inputs[0], inputs[1], outputs[0], step.kind)
            case "add":
                plan.add(inputs[0], inputs[1], outputs[0])
            case _:
                raise UnsupportedModel(f"the native executor has no operator {step.op!r}")

    def _lower_linear(
        self,
        plan: _native.Plan,
        step: Step,
        x: int,
        outputs: Sequence[int],
        buffers: dict[Value, int],
    ) -> None:
        gain, eps = step.norm if step.norm is not None else (None, 0.0)
        plan.linear(
            x,
            [self._weights[name] for name in step.weights],
            [None if name is None else self._vectors[name] for name in step.biases],
            list(outputs),
            -1 if step.residual is None else buffers[step.residual],
            None if gain is None else self._vectors[gain],
            eps,
            step.gated,
            step.op == "head",
        )


def rope_table(program: ModelProgram) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin (context, D / 2), computed in float64, with the attention factor."""
    angles = np.outer(
        np.arange(program.context_length, dtype=np.float64),
        np.array(program.inverse_frequencies, dtype=np.float64),
    )
    factor = program.attention_factor
    cosine = np.ascontiguousarray(np.cos(angles) * factor, dtype=np.float32)
    sine = np.ascontiguousarray(np.sin(angles) * factor, dtype=np.float32)
    return cosine, sine


def _packed(format: Format, n: int, k: int) -> _native.PackedWeight:
    match format:
        case FloatFormat(dtype):
            return _native.PackedWeight(dtype, n, k)
        case ChannelFormat():
            return _native.PackedWeight("channel", n, k)
        case GroupedFormat():
            return _native.PackedWeight(
                f"grouped{format.bits}",
                n,
                k,
                format.group,
                format.scale_dtype == "float16",
                format.has_minimum,
                format.zero,
            )


def _fill(packed: _native.PackedWeight, row0: int, block: Weight) -> None:
    match block:
        case FloatWeight(_, values):
            packed.fill_float(row0, np.ascontiguousarray(values))
        case ChannelWeight(_, codes, scales):
            packed.fill_channel(row0, np.ascontiguousarray(codes), np.ascontiguousarray(scales))
        case GroupedWeight(_, codes, scales, minima):
            packed.fill_grouped(
                row0,
                np.ascontiguousarray(codes),
                np.ascontiguousarray(scales),
                None if minima is None else np.ascontiguousarray(minima),
            )


def _shape(step: Step, batch: FlatBatch) -> tuple[int, ...]:
    if not step.outputs:
        return (batch.num_tokens, sum(value.width for value in step.inputs))
    rows = batch.logit_rows.shape[0] if step.outputs[0].is_logits else batch.num_tokens
    return (rows, sum(value.width for value in step.outputs))
