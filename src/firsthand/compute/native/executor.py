"""The default executor: packs weights, records and fuses the plan once, replays it for each batch.

Owns: the packed weights, and how an operator of the plan becomes a call of `_native`.
May not know: models, scheduling, files.
Read next: `packing.py`, `csrc/module.cpp` (the border), `csrc/plan_run.cpp` (the replay).

The memory of a step is fixed at `prepare`; `run` allocates nothing in C++.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Held, ModelProgram, OpTime, StoredWeights, SwapFacts
from firsthand.compute.fusion import RULES, check_rules, fuse
from firsthand.compute.native import _native
from firsthand.compute.native.cores import available_threads
from firsthand.compute.native.costs import op_time
from firsthand.compute.native.packing import (
    Stored,
    Unpacked,
    new_packed,
    pack,
    pack_floats,
    packing_fingerprint,
)
from firsthand.compute.native.shards import Choice, choose
from firsthand.compute.ops import ADAPTED
from firsthand.compute.plan import Op, Value, lay_out, record
from firsthand.config import MAX_THREADS
from firsthand.errors import EngineError, InvalidRequest, UnsupportedModel
from firsthand.kvcache.store import KVStore
from firsthand.quant.formats import Format, WeightSource
from firsthand.quant.low_rank import LowRank

MAX_KERNEL_HEAD_SIZE = 512


class NativeExecutor:
    """See `compute/executor.py`. `threads` None takes every core that the process may use."""

    name = "native"

    def __init__(
        self, *, threads: int | None = None, disabled_rules: Collection[str] = (), isa: str = ""
    ) -> None:
        count = available_threads() if threads is None else threads
        if not 1 <= count <= MAX_THREADS:
            raise InvalidRequest("threads", f"must be at least 1 and at most {MAX_THREADS}")
        check_rules(disabled_rules)
        try:
            self.isa = _native.isa(isa)
        except ValueError as error:
            raise InvalidRequest("FIRSTHAND_ISA", str(error)) from None
        self._threads = _native.Threads(count)
        self._disabled_rules = tuple(disabled_rules)
        self._weights: dict[str, _native.PackedWeight] = {}
        self._formats: dict[str, Format] = {}
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._plan: _native.Plan | None = None
        self._bound: KVStore | None = None
        self._adapters: dict[str, int] = {}
        self._factors: list[_native.PackedWeight] = []
        self._max_tokens = 0
        self._swapped: Choice | None = None
        self._running = threading.Lock()
        self.recorded: list[Op] = []
        self.ops: list[Op] = []

    @property
    def threads(self) -> int:
        return self._threads.count

    @property
    def pool(self) -> _native.Threads:
        """The threads themselves: idle between two calls of `run`, for work of the same caller."""
        return self._threads

    def beside(self, *, threads: int | None = None, rules: bool = True) -> NativeExecutor:
        """One more over the same weights, yet to be prepared; without rules its plan stays as it
        was recorded. What it loads is its own."""
        disabled = self._disabled_rules if rules else [rule.name for rule in RULES]
        count = self.threads if threads is None else threads
        other = NativeExecutor(threads=count, disabled_rules=disabled, isa=self.isa)
        other._weights, other._formats = dict(self._weights), dict(self._formats)
        other._vectors = dict(self._vectors)
        return other

    def load_weight(self, source: WeightSource) -> None:
        self.load_packed(source.name, pack(source), source.format)

    def packing_fingerprint(self) -> str:
        return packing_fingerprint()

    def open_packed(
        self, format: Format, n: int, k: int, stored: NDArray[np.uint8]
    ) -> _native.PackedWeight:
        """A matrix over memory that holds it as `packed` gave it; no copy. The memory must stay as
        it is. Raises ValueError where size or format is wrong."""
        return new_packed(format, n, k, stored)

    def load_packed(self, name: str, weight: _native.PackedWeight, format: Format) -> None:
        self._weights[name] = weight
        self._formats[name] = format

    def unpacked(self, source: WeightSource) -> Unpacked:
        """A matrix as `packed` would give it, without loading it."""
        return Unpacked(source)

    def packed(self) -> list[Stored]:
        """Each loaded matrix as it is to be stored."""
        return [Stored(name, format, self._weights[name]) for name, format in self._formats.items()]

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        self._vectors[name] = np.array(values, dtype=np.float32)

    def alias(self, name: str, target: str) -> None:
        if target in self._weights:
            self._weights[name] = self._weights[target]
        else:
            self._vectors[name] = self._vectors[target]

    def prepare(self, program: ModelProgram, max_tokens: int, max_logit_rows: int) -> None:
        self.prepare_ops(
            record(program.forward, self._shape_of), program, max_tokens, max_logit_rows
        )

    def prepare_ops(
        self, ops: Sequence[Op], program: ModelProgram, max_tokens: int, max_logit_rows: int
    ) -> None:
        """As `prepare`, of operators that are a stage of the model: see `compute/stages.py`. Only
        their weights have to be loaded."""
        sizes = {2 * len(rope.inverse_frequencies) for rope in program.ropes}
        if sizes != {program.head_size} or program.head_size > MAX_KERNEL_HEAD_SIZE:
            raise UnsupportedModel(
                f"head size {program.head_size}: must be even and at most {MAX_KERNEL_HEAD_SIZE}"
            )
        self.recorded = list(ops)
        self.ops = fuse(self.recorded, self._disabled_rules)
        plan = _native.Plan(
            max_tokens,
            max_logit_rows,
            program.vocab_size,
            program.context_length,
            [(rope.inverse_frequencies, rope.attention_factor) for rope in program.ropes],
            self._threads,
            self.isa,
        )
        layout = lay_out(self.ops, max_tokens)
        buffers = {
            value: plan.add_buffer(offset, value.width) for value, offset in layout.offsets.items()
        }
        for op in self.ops:
            self._lower(plan, op, buffers, program.head_size)
        plan.finish()
        self._plan = plan
        self._bound = None
        self._adapters, self._factors = {}, []
        self._max_tokens = max_tokens
        self._swapped = None

    def add_adapter(self, name: str, factors: Sequence[LowRank]) -> None:
        places = {
            weight: (at, which)
            for at, op in enumerate(self.ops)
            if op.name in ADAPTED
            for which, weight in enumerate(op.weights)
        }
        for one in factors:
            if one.weight not in places:
                raise UnsupportedModel(f"{one.weight} takes no adapter: it is no linear layer")
        # Parts of one module share their first factor.
        packed = {id(one.a): pack_floats(one.a) for one in factors}
        parts = [(*places[one.weight], packed[id(one.a)], pack_floats(one.b)) for one in factors]
        with self._alone() as plan:
            self._adapters[name] = plan.add_adapter(parts)
        self._factors += [matrix for part in parts for matrix in part[2:]]

    def swap(self, stored: StoredWeights, room_bytes: int | None) -> None:
        by_weight = {id(self._weights[name]): place for name, place in stored.places.items()}
        places = {name: by_weight[id(weight)] for name, weight in self._weights.items()}
        room = None if room_bytes is None else room_bytes - self._beside_bytes()
        with self._alone() as plan:
            choice = choose(self.ops, places, self._max_tokens, room)
            with stored.descriptor() as file:
                shards = [(s.first, s.last, s.ahead, s.behind) for s in choice.swapped]
                _native.swap(plan, stored.memory, file, shards)
            self._swapped = choice

    def swap_facts(self) -> SwapFacts | None:
        if self._swapped is None or self._plan is None:
            return None
        read_bytes, wait_ms = _native.swapped(self._plan)
        return SwapFacts(
            num_shards=self._swapped.num_shards,
            num_swapped=self._swapped.num_swapped,
            held_bytes=self._swapped.held_bytes,
            step_bytes=self._swapped.step_bytes,
            read_bytes=read_bytes,
            wait_ms=wait_ms,
        )

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        return self._replay(batch, store, trace=False)[0]

    def run_stage(
        self,
        batch: FlatBatch,
        store: KVStore,
        received: NDArray[np.float32] | None,
        *,
        trace: bool = False,
    ) -> tuple[NDArray[np.float32], list[OpTime]]:
        """As `run`, or as `trace`, of a stage: the rows (T, M) that it sends, the caller's own; of
        the last one, its logits. `received`: of all but the first, what the one before sent."""
        sent = None
        if self.ops[-1].name == "send":
            sent = np.empty((batch.num_tokens, self.ops[-1].inputs[0].width), dtype=np.float32)
        logits, times = self._replay(batch, store, trace=trace, received=received, sent=sent)
        return logits if sent is None else sent, times

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        with self._alone() as plan:
            return plan.logits(rows)

    def hidden(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        with self._alone() as plan:
            out = np.empty((len(rows), plan.hidden_width), dtype=np.float32)
            plan.hidden(rows, out)
            return out

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        return self._replay(batch, store, trace=True)

    def memory(self) -> Held:
        weights_bytes = self._beside_bytes()
        if self._swapped is not None:
            weights_bytes += self._swapped.held_bytes
        else:
            panels = {id(w): w.parts()[0].nbytes for w in self._weights.values()}
            weights_bytes += sum(panels.values())
        return Held(
            weights_bytes=weights_bytes,
            scratch_bytes=self._plan.scratch_bytes if self._plan is not None else 0,
        )

    def _beside_bytes(self) -> int:
        """What lies beside the panels of the weights: vectors, scales of channels, adapters."""
        held = {id(vector): vector.nbytes for vector in self._vectors.values()}
        held |= {id(weight): weight.parts()[1].nbytes for weight in self._weights.values()}
        held |= {id(factor): factor.num_bytes for factor in self._factors}
        return sum(held.values())

    def _replay(
        self,
        batch: FlatBatch,
        store: KVStore,
        *,
        trace: bool,
        received: NDArray[np.float32] | None = None,
        sent: NDArray[np.float32] | None = None,
    ) -> tuple[NDArray[np.float32], list[OpTime]]:
        with self._alone() as plan:
            self._bind(plan, store)
            logits, times = plan.run(
                batch.token_ids,
                batch.positions,
                batch.row_starts,
                batch.block_starts,
                batch.block_size,
                batch.logit_rows,
                trace,
                self._adapters_of(batch),
                received,
                sent,
            )
        timed = zip(self.ops, times, strict=True) if trace else ()
        return logits, [op_time(op, ms, self._weights, batch, store) for op, ms in timed]

    def _adapters_of(self, batch: FlatBatch) -> NDArray[np.int32] | None:
        if not batch.adapters:
            return None
        numbers = [self._adapters.get(name, -1 if name == "" else -2) for name in batch.adapters]
        return np.array(numbers, dtype=np.int32)  # −2 is none that C++ lets through

    @contextmanager
    def _alone(self) -> Iterator[_native.Plan]:
        """The plan's scratch and the bound store are this executor's own: one run at a time. Two
        callers are a mistake of whoever shares it, and waiting would only hide it."""
        if not self._running.acquire(blocking=False):
            raise EngineError("the executor is running on another thread")
        try:
            if self._plan is None:
                raise EngineError("prepare() comes before run()")
            yield self._plan
        except ValueError as error:
            raise EngineError(str(error)) from error
        finally:
            self._running.release()

    def _bind(self, plan: _native.Plan, store: KVStore) -> None:
        if store is self._bound:
            return
        layers = [store.layer(i) for i in range(1 + max(op.layer for op in self.ops))]
        plan.bind_store(
            [(a.keys, a.values, a.key_scales, a.value_scales) for a in layers],
            store.layout == "tiles",
        )
        self._bound = store

    def _shape_of(self, name: str) -> tuple[int, int]:
        weight = self._weights[name]
        return weight.n, weight.k

    def _lower(self, plan: _native.Plan, op: Op, buffers: dict[Value, int], head_size: int) -> None:
        """Hand one operator to C++."""
        inputs = [buffers[value] for value in op.inputs]
        outputs = [buffers[value] for value in op.outputs if not value.is_logits]
        match op.name:
            case "embed":
                plan.embed(self._weights[op.weights[0]], outputs[0], op.factor)
            case "norm":
                gain, eps = op.norm or ("", 0.0)
                plan.norm(inputs[0], self._vectors[gain], eps, outputs[0], op.num_heads)
            case "linear" | "head":
                self._lower_linear(plan, op, inputs[0], outputs, buffers)
            case "rope":
                plan.rope(inputs[0], op.num_heads, outputs[0], op.table)
            case "store":
                plan.store(op.layer, inputs[0], inputs[1], op.rotate, op.table)
            case "attend":
                plan.attend(
                    op.layer,
                    inputs[0],
                    outputs[0],
                    op.num_heads,
                    op.num_kv_heads,
                    op.rule.scale_of(head_size),
                    op.rule.cap or 0.0,
                    op.rule.window or 0,
                    op.rotate,
                    op.table,
                )
            case "activation" | "add" | "receive" | "send":
                _lower_rows(plan, op, inputs, outputs)
            case "route" | "experts":
                self._lower_experts(plan, op, inputs, outputs[0])
            case _:
                raise UnsupportedModel(f"the native executor has no operator {op.name!r}")

    def _lower_experts(self, plan: _native.Plan, op: Op, inputs: Sequence[int], out: int) -> None:
        if op.routing is not None:
            shared = inputs[1] if len(inputs) > 1 else -1
            plan.route(inputs[0], out, op.routing.top_k, op.routing.renormalise, shared)
            return
        gates, ups, downs = (
            [self._weights[name] for name in op.weights[which::3]] for which in range(3)
        )
        plan.experts(inputs[0], inputs[1], out, gates, ups, downs, op.kind)

    def _lower_linear(
        self,
        plan: _native.Plan,
        op: Op,
        x: int,
        outputs: Sequence[int],
        buffers: dict[Value, int],
    ) -> None:
        gain, eps = op.norm if op.norm is not None else (None, 0.0)
        plan.linear(
            x,
            [self._weights[name] for name in op.weights],
            [None if name is None else self._vectors[name] for name in op.biases],
            list(outputs),
            -1 if op.residual is None else buffers[op.residual],
            None if gain is None else self._vectors[gain],
            eps,
            op.gated,
            op.name == "head",
            op.factor,
        )


def _lower_rows(plan: _native.Plan, op: Op, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Operators over rows alone."""
    match op.name:
        case "activation":
            plan.activation(inputs[0], inputs[1], outputs[0], op.kind)
        case "add":
            plan.add(inputs[0], inputs[1], outputs[0])
        case "receive":
            plan.receive(outputs[0])
        case "send":
            plan.send(inputs[0])
