"""The executor for a card: records and fuses the plan once, and replays it for each batch.

Owns: the weights on the device, the order check, send, run, hand back, and who is captured.
May not know: models, scheduling, files.
Read next: `replay.py` (the operators), `steps.py` (what is sent), `graphs.py`, `memory.py`.

A step: its integers go to the device in one copy, the kernels are queued or a graph is replayed,
the logits come back. Only that last copy is waited for. Without a card it runs in Triton's
interpreter, on the CPU: for tests.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from firsthand.checks import check_choice
from firsthand.compute.batch import FlatBatch
from firsthand.compute.buckets import CompileFacts
from firsthand.compute.executor import Held, ModelProgram, OpTime, Shortlist, check_batch
from firsthand.compute.fusion import check_rules, fuse
from firsthand.compute.ops import ADAPTED
from firsthand.compute.plan import Op, record
from firsthand.compute.torch.ops import rotation
from firsthand.compute.triton.arena import Arena, ArenaSizes
from firsthand.compute.triton.attention import dot_dtype
from firsthand.compute.triton.cache import Angles
from firsthand.compute.triton.costs import cost_of
from firsthand.compute.triton.fusing import RULES
from firsthand.compute.triton.graphs import Capture, CudaCapture, Graphs
from firsthand.compute.triton.launch import is_interpreted
from firsthand.compute.triton.linear import DeviceWeight
from firsthand.compute.triton.memory import reserve_on, told_apart
from firsthand.compute.triton.replay import Parameters, Replay
from firsthand.compute.triton.sampling import Picks, shortlist_of
from firsthand.compute.triton.steps import Step, StepBuffer, StepSizes
from firsthand.compute.triton.store import TYPES, DeviceStore, StoreSizes
from firsthand.compute.triton.tiles import Tiles, shared_bytes, tiles_for
from firsthand.compute.triton.weights import Staging, load_weight
from firsthand.errors import CapacityExceeded, EngineError, InvalidRequest, UnsupportedModel
from firsthand.kvcache.arrays import KVType
from firsthand.kvcache.store import KVStore
from firsthand.models.rope import RopeSpec
from firsthand.quant.formats import WeightSource
from firsthand.quant.low_rank import LowRank
from firsthand.values import dataclass

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """What belongs to one store: the buffer of a step, and the graphs over both."""

    store: DeviceStore
    buffer: StepBuffer
    graphs: Graphs | None


class TritonExecutor:
    """See `compute/executor.py`; its stores are those of `new_store`.

    `dtype` is that of the activations: bfloat16 on a card, float32 in the interpreter. `buckets`:
    capture a graph for each of these numbers of rows. `deterministic`: no product of a library's,
    and one tile for all steps, so that a row's bits do not depend on its company.
    Raises InvalidRequest when an option is unknown, or there is no card and no interpreter.
    """

    name = "triton"

    def __init__(
        self,
        device: str = "cuda",
        dtype: str | None = None,
        *,
        buckets: tuple[int, ...] = (),
        disabled_rules: Collection[str] = (),
        deterministic: bool = False,
        capture: Capture | None = None,
    ) -> None:
        self._device = _device(device)
        is_cuda = self._device.type == "cuda"
        dtype = dtype or ("bfloat16" if is_cuda else "float32")
        check_choice("dtype", dtype, tuple(DTYPES))
        check_rules(disabled_rules, RULES)
        self._active = DTYPES[dtype]
        self._sizes = buckets
        self._disabled_rules = tuple(disabled_rules)
        self._steady = deterministic
        if buckets and not is_cuda and capture is None:
            raise InvalidRequest("compile", "a graph is captured on a card: device cuda")
        self._capture = capture
        self._range_of = torch.cuda.nvtx.range if is_cuda else None
        self._staging = Staging(self._device)
        self._reserve = reserve_on(self._device)
        self._weights: dict[str, DeviceWeight] = {}
        self._vectors: dict[str, torch.Tensor] = {}
        self._adapters: dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]] = {}
        self._program: ModelProgram | None = None
        self._replay: Replay
        self._arena: Arena
        self._limits = (0, 0)  # tokens and logit rows of a step
        self._angles: list[Angles] = []
        self._logits: torch.Tensor
        self._picks: Picks
        self._bound: _Bound | None = None
        self._last: tuple[FlatBatch, int] | None = None
        self.ops: list[Op] = []

    def load_weight(self, source: WeightSource) -> None:
        with self._room_for(source.name):
            held = load_weight(source, self._staging, self._device, self._active)
        self._weights[source.name] = held

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        self._vectors[name] = torch.tensor(values, dtype=torch.float32, device=self._device)

    def alias(self, name: str, target: str) -> None:
        if target in self._weights:
            self._weights[name] = self._weights[target]
        else:
            self._vectors[name] = self._vectors[target]

    def prepare(self, program: ModelProgram, max_tokens: int, max_logit_rows: int) -> None:
        if {2 * len(rope.inverse_frequencies) for rope in program.ropes} != {program.head_size}:
            raise UnsupportedModel(f"rotary frequencies for heads that are no {program.head_size}")
        self._staging.finish()
        self.ops = fuse(record(program.forward, self._shape_of), self._disabled_rules, RULES)
        sizes = ArenaSizes(
            max_tokens,
            max_logit_rows,
            program.vocab_size,
            program.width,
            program.num_heads,
            program.head_size,
            program.context_length,
        )
        with self._room_for("the memory of a step"):
            self._arena = Arena(self.ops, sizes, self._active, self._device)
            self._angles = [_angles(r, program.context_length, self._device) for r in program.ropes]
            self._logits = torch.empty(
                (max_logit_rows, program.vocab_size),
                dtype=torch.float32,
                pin_memory=self._device.type == "cuda",
            )
            self._picks = Picks(max_logit_rows, program.vocab_size, self._device)
        self._adapters = {}
        held = Parameters(self._weights, self._vectors, self._angles, self._adapters)
        self._replay = Replay(self.ops, held, self._arena, steady=self._steady)
        self._program, self._limits = program, (max_tokens, max_logit_rows)
        self._step_sizes = (sizes.max_singles, sizes.num_splits)
        self._bound = self._last = None

    def new_store(self, num_blocks: int, block_size: int, kv_dtype: KVType) -> KVStore:
        """After `prepare`. Raises CapacityExceeded where the slab does not fit, or attention over
        it does not."""
        program = self._prepared()
        sizes = StoreSizes(
            program.num_layers,
            program.num_kv_heads,
            program.head_size,
            num_blocks,
            block_size,
            kv_dtype,
        )
        self._tiles(kv_dtype)
        with self._room_for("the keys and values"):
            store = DeviceStore(sizes, self._device)
        self._reserve.take()
        return store

    def add_adapter(self, name: str, factors: Sequence[LowRank]) -> None:
        self._prepared()
        layers = {weight for op in self.ops if op.name in ADAPTED for weight in op.weights}
        for one in factors:
            if one.weight not in layers:
                raise UnsupportedModel(f"{one.weight} takes no adapter: it is no linear layer")

        def held(values: NDArray[np.float32]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self._device)

        self._adapters[name] = {one.weight: (held(one.a), held(one.b)) for one in factors}

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        with torch.inference_mode(), told_apart():
            return self._handed_back(self._run(batch, store))

    def run_best(self, batch: FlatBatch, store: KVStore) -> NDArray[np.int32]:
        with torch.inference_mode(), told_apart():
            found = self._picks.best(self._run(batch, store))
            self._wait()
            return np.asarray(found.numpy())

    def run_shortlist(self, batch: FlatBatch, store: KVStore) -> Shortlist:
        with torch.inference_mode(), told_apart():
            found = self._picks.likeliest(self._run(batch, store))
            self._wait()
            return shortlist_of(found)

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        with torch.inference_mode(), told_apart():
            batch, num_rows = self._ran()
            if len(rows) > self._limits[1]:
                raise EngineError(f"{len(rows)} rows; at most {self._limits[1]}")
            chosen = torch.tensor(rows, dtype=torch.int32, device=self._device)
            return self._handed_back(self._replay.logits(chosen, num_rows, batch))

    def hidden(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        with torch.inference_mode(), told_apart():
            chosen = torch.tensor(rows, dtype=torch.int32, device=self._device)
            found = self._replay.hidden(chosen, self._ran()[1])
            return np.asarray(found.cpu().numpy())

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        """Operator by operator, each waited for."""
        times: list[OpTime] = []

        @contextmanager
        def timed(op: Op) -> Iterator[None]:
            self._wait()
            started_s = time.perf_counter()
            yield
            self._wait()
            ms = (time.perf_counter() - started_s) * 1e3
            times.append(cost_of(op, batch, self._weights, bound.store, ms))

        with torch.inference_mode(), told_apart():
            bound = self._checked(batch, store)
            step = bound.buffer.fill(batch)
            self._last = batch, batch.num_tokens
            return self._handed_back(self._replay.run(step, bound.store, batch, timed)), times

    def compiled_steps(self) -> CompileFacts | None:
        graphs = None if self._bound is None else self._bound.graphs
        return None if graphs is None else graphs.facts()

    def memory(self) -> Held:
        weights = {id(one): one.num_bytes for one in self._weights.values()}
        vectors = {id(one): one.nbytes for one in self._vectors.values()}
        factors = [one for by in self._adapters.values() for pair in by.values() for one in pair]
        scratch = 0 if self._program is None else self._arena.num_bytes
        scratch += sum(one.nbytes for angles in self._angles for one in angles)
        if self._bound is not None:
            scratch += self._bound.buffer.num_bytes
        held = sum(weights.values()) + sum(vectors.values()) + sum(one.nbytes for one in factors)
        return Held(weights_bytes=held, scratch_bytes=scratch)

    def _run(self, batch: FlatBatch, store: KVStore) -> torch.Tensor:
        """(L, V) the logits, on their way; once more where memory was refused and the reserve was
        there."""
        bound = self._checked(batch, store)
        try:
            return self._queued(batch, bound)
        except torch.OutOfMemoryError:
            if not self._reserve.give_up():
                raise
            return self._queued(batch, bound)

    def _queued(self, batch: FlatBatch, bound: _Bound) -> torch.Tensor:
        """(L, V) the logits, on their way."""
        graphs = bound.graphs
        bucket = None
        if graphs is not None:
            can = bound.buffer.fits(batch) and not batch.adapters
            graphs.count(batch.num_tokens if can else None)
            bucket = graphs.choose(batch.num_tokens) if can else None
        step = bound.buffer.fill(batch, bucket)
        self._last = batch, step.num_tokens
        if graphs is None or bucket is None:
            return self._replay.run(step, bound.store, batch, self._ranged)
        with nullcontext() if self._range_of is None else self._range_of(f"graph of {bucket}"):
            graphs.replay(bucket)
        return self._arena.logits(len(batch.logit_rows))

    @property
    def _ranged(self) -> Any:
        """A named range around each operator, for Nsight Systems; nothing elsewhere."""
        draw = self._range_of
        return None if draw is None else lambda op: draw(str(op))

    def _handed_back(self, logits: torch.Tensor) -> NDArray[np.float32]:
        """The one copy of a step that is waited for."""
        host = self._logits[: logits.shape[0]]
        host.copy_(logits, non_blocking=True)
        self._wait()
        return np.asarray(host.numpy())

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _checked(self, batch: FlatBatch, store: KVStore) -> _Bound:
        """A wrong index would read another sequence's memory, and on a card end the process."""
        check_batch(batch, self._prepared(), self._limits, self._adapters)
        bound = self._bound
        if bound is None or bound.store is not store:
            bound = self._bound = self._bind(store)
        return bound

    def _tiles(self, kv_dtype: KVType) -> Tiles:
        """Raises CapacityExceeded where no tile of attention over such a memory fits the card."""
        program = self._prepared()
        group = program.num_heads // program.num_kv_heads
        dtype = dot_dtype(TYPES[kv_dtype], self._active)
        return tiles_for(group, program.head_size, dtype, shared_bytes(self._device))

    def _bind(self, store: KVStore) -> _Bound:
        """The first step over a store, which is that of the warm-up: graphs are captured."""
        program = self._prepared()
        if not isinstance(store, DeviceStore):
            raise EngineError("this executor runs over its own stores: `new_store`")
        max_tokens, max_logit_rows = self._limits
        max_singles, num_splits = self._step_sizes
        sizes = StepSizes(
            max_tokens,
            max_logit_rows,
            max_singles,
            self._tiles(store.kv_dtype),
            num_splits,
            1 + -(-program.context_length // store.block_size),
            store.block_size,
        )
        buffer = StepBuffer(sizes, self._device)
        most = min(max_singles, max_logit_rows)
        buckets = tuple(size for size in self._sizes if size <= most)
        if not buckets or self._replay.has_experts:  # who has which rows is read in the middle
            return _Bound(store, buffer, None)
        graphs = Graphs(buckets, self._capture or CudaCapture(self._device))
        nobody = _nobody(store.block_size)

        def run(rows: int) -> None:
            self._replay.run(steps[rows], store, nobody)

        steps: dict[int, Step] = {rows: buffer.fill(nobody, rows) for rows in buckets}
        graphs.capture(run)
        return _Bound(store, buffer, graphs)

    @contextmanager
    def _room_for(self, what: str) -> Iterator[None]:
        with told_apart():
            try:
                yield
            except torch.OutOfMemoryError:
                raise CapacityExceeded(f"the card has no room for {what}") from None

    def _prepared(self) -> ModelProgram:
        if self._program is None:
            raise EngineError("prepare() comes first")
        return self._program

    def _ran(self) -> tuple[FlatBatch, int]:
        if self._last is None:
            raise EngineError("rows were asked for before the executor was run")
        return self._last

    def _shape_of(self, name: str) -> tuple[int, int]:
        return self._weights[name].shape


def _device(name: str) -> torch.device:
    check_choice("device", name, ("cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device", "'cuda' was asked for, but torch finds no CUDA device")
    if (name == "cpu") != is_interpreted():
        raise InvalidRequest("device", "kernels run on cuda; on cpu with TRITON_INTERPRET=1 alone")
    return torch.device(name)


def _angles(rope: RopeSpec, num_positions: int, device: torch.device) -> Angles:
    """cos and sin of every position, (positions, D/2), from angles in float64."""
    positions = np.arange(num_positions, dtype=np.int32)
    cos, sin = rotation(positions, rope, torch.float32, device)
    return cos[:, 0].contiguous(), sin[:, 0].contiguous()


def _nobody(block_size: int) -> FlatBatch:
    """A step without rows, to be padded."""
    none = np.zeros(0, np.int32)
    return FlatBatch(
        none, none, np.zeros(1, np.int32), np.zeros((0, 1), np.int64), block_size, none
    )
