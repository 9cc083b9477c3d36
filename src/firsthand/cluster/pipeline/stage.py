"""One stage: some layers of a model, their weights, their keys and values.

Owns: what is loaded for them and nothing else, one part of a step after another, what it took.
May not know: the other stages, where it runs, how work comes.
Read next: `executor.py` (who sends work), `actors.py` (a stage in a worker of Ray).

A weight that another stage has is never packed here. The first stage has the embedding, the last
one norm and head; where these two are one tensor, both hold it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firsthand.cluster.pipeline.splits import Costs
from firsthand.cluster.pipeline.timeline import Span
from firsthand.cluster.pipeline.work import Work
from firsthand.compute.executor import Held, OpTime
from firsthand.compute.native.executor import NativeExecutor
from firsthand.compute.plan import Op, record
from firsthand.compute.stages import names_of, stage_ops
from firsthand.config import read_environment
from firsthand.errors import EngineError, InvalidRequest
from firsthand.generation.executors import new_executor
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.planning import limit_of, sequences_of, settle_stage
from firsthand.generation.reading import read_spec
from firsthand.generation.swapping import reader
from firsthand.kvcache.paged import PagedStore
from firsthand.memory.budget import Budget
from firsthand.models import families
from firsthand.models.spec import ModelSpec
from firsthand.processes import resident_bytes
from firsthand.quant.formats import WeightSource
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve
from firsthand.weights.loading import LoadReport
from firsthand.weights.open import open_checkpoint
from firsthand.weights.verifying import sums_of, verified


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a stage holds now. `weights` has its own tensors alone."""

    spec: ModelSpec
    budget: Budget
    weights: LoadReport
    held: Held
    threads: int
    load_ms: float
    resident_bytes: int  # of its process


class Stage:
    """`load`, then `open_store`, then `step` for each part; `load` again for another split."""

    def __init__(self, number: int, model: str | Path, options: LoadOptions) -> None:
        self._number = number
        self._model = str(model)
        self._options = options
        self._first = 0
        self._spec: ModelSpec | None = None
        self._executor: NativeExecutor | None = None
        self._store: PagedStore | None = None

    def load(self, first: int, last: int) -> Loaded:
        """Layers `first` … `last` − 1. Raises what `load_model` does."""
        self._executor = self._store = None  # what an earlier split held is free now
        began_s = time.perf_counter()
        environment = read_environment()
        path = resolve(self._model, environment).path
        limit = limit_of(self._options)
        with (
            verified(path, sums_of(environment), trusted=environment.trusted_keys),
            closing(open_checkpoint(path)) as checkpoint,
        ):
            spec = read_spec(checkpoint, self._options.max_context)
            executor = new_executor(self._options, environment)
            if not isinstance(executor, NativeExecutor):
                raise InvalidRequest("executor", "a stage is computed by the native one")
            slots = families.slots(spec)
            program = families.program(spec)
            shapes = {slot.name: (slot.shape[0], slot.shape[-1]) for slot in slots}
            ops = stage_ops(record(program.forward, shapes.__getitem__), first, last)
            wanted = names_of(ops)
            wanted |= {slot.tied_to for slot in slots if slot.name in wanted and slot.tied_to}
            report = reader(checkpoint, spec, self._options.quantization)(_Own(executor, wanted))
        is_last = last == spec.num_layers
        sequences = self._options.max_logit_rows or sequences_of(self._options)
        logit_rows = min(sequences, self._options.max_step_tokens) if is_last else 1
        executor.prepare_ops(ops, program, self._options.max_step_tokens, logit_rows)
        self._first, self._spec, self._executor = (
            first,
            replace(spec, num_layers=last - first),
            executor,
        )
        held = executor.memory()
        return Loaded(
            spec=spec,
            budget=settle_stage(limit, held, self._spec, self._options),
            weights=_own_of(report, wanted),
            held=held,
            threads=executor.threads,
            load_ms=(time.perf_counter() - began_s) * 1e3,
            resident_bytes=resident_bytes(os.getpid()) or 0,
        )

    def open_store(self, num_blocks: int) -> int:
        """Memory for the keys and values of its layers, in bytes. Raises CapacityExceeded."""
        spec = self._spec
        if spec is None:
            raise EngineError("load() comes before open_store()")
        self._store = PagedStore(
            spec.num_layers,
            spec.num_kv_heads,
            spec.head_size,
            num_blocks=num_blocks,
            block_size=self._options.block_size,
            kv_dtype=self._options.kv_dtype,
            layout=self._options.kv_layout,
        )
        return self._store.num_bytes

    def step(self, work: Work) -> Work:
        """The same, with the rows that this stage made of it. Parts come in their order."""
        began_s = time.perf_counter()
        executor, store = self._executor, self._store
        if executor is None or store is None:
            raise EngineError("open_store() comes before step()")
        for source, target in work.copies:
            store.copy_block(source, target)
        batch = work.batch
        if executor.ops[-1].name == "send":
            batch = replace(batch, logit_rows=batch.logit_rows[:0])
        rows, ops = executor.run_stage(batch, store, work.rows, trace=work.is_traced)
        if executor.ops[-1].name != "send":
            rows = rows.copy()  # its memory is that of the next part, too
        costs = (_costs(executor.ops, ops),) if work.is_traced else ()
        done = Span(
            step=work.step,
            part=work.part,
            stage=self._number,
            began_s=began_s,
            ended_s=time.perf_counter(),
            num_rows=work.batch.num_tokens,
            num_bytes=work.num_bytes,
        )
        return work._replace(
            rows=rows,
            spans=(*work.spans, done),
            costs=(*work.costs, *costs),
            ops=(*work.ops, *ops),
        )

    def clock(self) -> float:
        """Seconds on the clock of the spans."""
        return time.perf_counter()

    def resident_bytes(self) -> int:
        """Memory of this stage's process that is in the machine's."""
        return resident_bytes(os.getpid()) or 0


class _Own:
    """A `WeightSink` that takes the named tensors alone."""

    def __init__(self, executor: NativeExecutor, names: set[str]) -> None:
        self._executor = executor
        self._names = names

    def load_weight(self, source: WeightSource) -> None:
        if source.name in self._names:
            self._executor.load_weight(source)

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        if name in self._names:
            self._executor.load_vector(name, values)

    def alias(self, name: str, target: str) -> None:
        if name in self._names:
            self._executor.alias(name, target)


def _own_of(report: LoadReport, names: set[str]) -> LoadReport:
    return LoadReport(
        tensors=tuple(one for one in report.tensors if one.name in names),
        aliases=tuple(one for one in report.aliases if one.name in names),
        ignored=report.ignored,
    )


def _costs(ops: Sequence[Op], times: Sequence[OpTime]) -> Costs:
    """Of each layer, and of what comes before and after them. An operator belongs to the layer that
    its tensors name, one without any to that of the operator before it."""
    layers: list[float] = []
    before = after = 0.0
    current = ""
    for op, one in zip(ops, times, strict=True):
        named = [re.search(r"\.layers\.(\d+)\.", name) for name in sorted(names_of([op]))]
        found = next((match[1] for match in named if match), None)
        if found is not None and found != current:
            current = found
            layers.append(0.0)
        if op.name == "head" or (found is None and op.norm is not None):
            after += one.ms
        elif not layers:
            before += one.ms
        else:
            layers[-1] += one.ms
    return Costs(tuple(layers), before, after)
