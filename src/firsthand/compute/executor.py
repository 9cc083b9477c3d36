"""What an executor is: it holds weights in its own form and runs the model over a batch.

Owns: the interface that the engine's runner sees.
May not know: the engine, scheduling, files.
Read next: `torch/executor.py` (the reference) and `native/executor.py` (the default).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.ops import Ops
from firsthand.errors import EngineError
from firsthand.kvcache.arrays import KVType
from firsthand.kvcache.store import KVStore
from firsthand.models.rope import RopeSpec
from firsthand.quant.formats import WeightSource
from firsthand.quant.low_rank import LowRank
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """A model as an executor needs it: its text, and the numbers that size things.

    `forward(ops)` is the model file's function with its spec bound; it returns the logits (L, V).
    """

    forward: Callable[[Ops[Any]], Any]
    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ropes: tuple[RopeSpec, ...]  # what `table` of `Ops.rope` counts
    context_length: int  # positions 0 … context_length − 1 can occur


@dataclass(frozen=True, slots=True)
class OpTime:
    """One operator of a traced step: what it was, the shape of its result, its time.

    `num_bytes` is what it has to read from memory: its weights (of an embedding, the batch's rows),
    and for an attention the keys and values of every context. Activations are not counted.
    `num_macs` are the multiply-accumulates of its products: of a linear layer rows · N · K, of an
    attention two per query head, dimension and position seen. Sums over one row do not count.
    """

    name: str
    detail: str
    shape: tuple[int, ...]
    ms: float
    num_bytes: int
    num_macs: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """What an executor holds, measured: packed weights (aliases once), and memory for one step."""

    weights_bytes: int
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class CallTime:
    """Calls of one kernel of a library below us in one step, as its profiler counted them.

    `self_ms` without the calls inside, `total_ms` with them, both on the CPU; `device_ms` on the
    GPU. `allocated_bytes` is what they took and kept. `num_flops` is 0 where none are known.
    """

    name: str
    count: int
    self_ms: float
    total_ms: float
    device_ms: float
    allocated_bytes: int
    num_flops: int


@dataclass(frozen=True, slots=True, eq=False)
class ProfiledStep:
    """The calls, the most time first; and the profiler's own trace, as Perfetto opens it."""

    calls: tuple[CallTime, ...]
    trace: dict[str, Any]

    @property
    def total_ms(self) -> float:
        return sum(max(call.self_ms, call.device_ms) for call in self.calls)


@runtime_checkable
class Profiles(Protocol):
    """An executor over a library that has a profiler of its own."""

    def profile_traces(self) -> AbstractContextManager[list[ProfiledStep]]:
        """Inside, every `trace` runs under the profiler too, and its step joins the list.

        A profiler takes time itself: the operators' times of such a trace are too long.
        """


@dataclass(frozen=True, slots=True)
class SwapFacts:
    """Weights of which only a part is in memory, and what that cost since the load.

    `num_swapped` of `num_shards` come and go; `held_bytes` of the weights' file are in memory at a
    time, at most; each step reads `step_bytes` from the disk. `read_bytes` were read so far, and
    computing waited `wait_ms` for them.
    """

    num_shards: int
    num_swapped: int
    held_bytes: int
    step_bytes: int
    read_bytes: int
    wait_ms: float


class StoredWeights(Protocol):
    """A file in which an executor's packed weights lie, mapped."""

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The whole file."""

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Where each weight lies in it: offset and bytes."""

    def descriptor(self) -> AbstractContextManager[int]:
        """The same file, open. Raises CheckpointError if it has been replaced since."""


@runtime_checkable
class Swaps(Protocol):
    """An executor that can run with a part of its weights in memory: the native one."""

    def swap(self, stored: StoredWeights, room_bytes: int | None) -> None:
        """After `prepare`: hold at most `room_bytes` of weights in memory (None: all), and read the
        rest as it is needed. Same bits. Raises CapacityExceeded when that is too little."""

    def swap_facts(self) -> SwapFacts | None:
        """None before `swap`."""


@runtime_checkable
class OwnsStores(Protocol):
    """An executor whose keys and values lie where only it can reach them: on a card."""

    def new_store(self, num_blocks: int, block_size: int, kv_dtype: KVType) -> KVStore:
        """After `prepare`: a paged store for its model. Raises CapacityExceeded."""


SHORTLIST = 256  # tokens


class Shortlist(NamedTuple):
    """The likeliest tokens of each row and their logits, in the order of ids: (L, C). `edges`,
    (L, 3), are the highest logit, the lowest one that is listed and the highest one that is not
    (−infinity where every token is listed)."""

    ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    edges: NDArray[np.float32]

    @property
    def is_certain(self) -> bool:
        """Whether the list of each row is the only one of its length, but for tokens that are
        masked; and no logit of the row is a NaN or +infinity, nor all of them −infinity."""
        best, last, beyond = self.edges.T
        told_apart = (beyond < last) | (beyond == -np.inf)
        return bool(np.all(np.isfinite(best) & told_apart))


@runtime_checkable
class PicksBest(Protocol):
    """An executor that looks at a row where its logits lie, so that few of them leave a card."""

    def run_best(self, batch: FlatBatch, store: KVStore) -> NDArray[np.int32]:
        """As `Executor.run`, but (L,) the tokens with the highest logits, ties to the lower id; −1
        for a row that has no best one: a NaN or +infinity, or −infinity everywhere."""

    def run_shortlist(self, batch: FlatBatch, store: KVStore) -> Shortlist:
        """As `Executor.run`, but of each row the `SHORTLIST` likeliest tokens, or all."""


class Executor(Protocol):
    """Weights first (`load_weight`, `load_vector`, `alias`), then `prepare`, then `run`."""

    @property
    def name(self) -> str: ...

    def load_weight(self, source: WeightSource) -> None:
        """Take a matrix, block by block, into the executor's own form; then release the source."""

    def load_vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Take a gain or a bias (N,)."""

    def alias(self, name: str, target: str) -> None:
        """Let `name` mean the already loaded `target`: a tied tensor, held once."""

    def prepare(self, program: ModelProgram, max_tokens: int, max_logit_rows: int) -> None:
        """Called once after the last weight; sizes are limits on every later batch."""

    def add_adapter(self, name: str, factors: Sequence[LowRank]) -> None:
        """After `prepare`, between two runs: batches may name it from now on. Raises
        UnsupportedModel, naming the weight, where one of them is no linear layer of the model."""

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        """(L, V) logits; valid until the next call."""

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """(R, V) those of any rows of the last batch, at most `max_logit_rows` at once, with the
        bits that `run` would have given them; valid until the next call."""

    def hidden(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """(R, M) what the head reads of rows of the last batch: the last layer's result, normed.
        The caller's own."""

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        """As `run`, with one entry per operator in order of execution. Same bits, slower."""

    def memory(self) -> Held: ...


def check_batch(
    batch: FlatBatch, program: ModelProgram, limits: tuple[int, int], adapters: Container[str]
) -> None:
    """Raises EngineError for a step that is larger than `limits` (tokens, logit rows), or names
    what is not there: an index that is wrong would read another sequence's memory."""
    max_tokens, max_logit_rows = limits
    if batch.num_tokens > max_tokens:
        raise EngineError(f"{batch.num_tokens} tokens in a step; at most {max_tokens}")
    if len(batch.logit_rows) > max_logit_rows:
        raise EngineError(f"{len(batch.logit_rows)} rows; at most {max_logit_rows}")
    _check_range("token id", batch.token_ids, program.vocab_size)
    _check_range("position", batch.positions, program.context_length)
    unknown = {name for name in batch.adapters if name and name not in adapters}
    if unknown:
        raise EngineError(f"no adapter {min(unknown)!r} in a step")


def _check_range(what: str, values: NDArray[np.int32], limit: int) -> None:
    if values.size and not (values.min() >= 0 and values.max() < limit):
        raise EngineError(f"{what} outside 0 … {limit - 1} in a step")
