"""From a name to a loaded model: the one place where file, spec, weights and store meet.

Owns: the order of a load and the time of each stage.
May not know: how any part works.
Read next: `load_options.py`; each import below is one stage; then `assembly.py`, which makes an
engine of the result.

The stages: find the file, check and map it, read its words as a spec; the executor, and the packed
form if there is one; the tokenizer; the weights into the executor; then the plan, its scratch and
the KV store.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import field, replace
from pathlib import Path

from firsthand.compute.buckets import CompileFacts, Compiles
from firsthand.compute.executor import Executor, SwapFacts, Swaps
from firsthand.config import Environment, read_environment
from firsthand.engine.guessing.config import FIELD, MAX_STEP_GUESSES, guess_config
from firsthand.errors import EngineError, InvalidRequest
from firsthand.generation import planning
from firsthand.generation.executors import add_adapters, new_executor
from firsthand.generation.load_options import LoadOptions, draft_options
from firsthand.generation.packing import KeepsPacked, Packing
from firsthand.generation.reading import read_spec, read_tokenizer
from firsthand.generation.report import AdapterFacts, LoadTimes
from firsthand.generation.stores import new_store
from firsthand.generation.swapping import reader, swap_weights
from firsthand.kvcache.contiguous import SPARE, ContiguousStore
from firsthand.kvcache.store import KVStore
from firsthand.memory.budget import Budget
from firsthand.models import families
from firsthand.models.spec import ModelSpec
from firsthand.scheduling.limits import Limits
from firsthand.text.tokenizer import Tokenizer
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve
from firsthand.weights.checkpoint import Checkpoint
from firsthand.weights.loading import LoadReport
from firsthand.weights.open import open_checkpoint
from firsthand.weights.packed_file import PackedFile
from firsthand.weights.sources import Quantization
from firsthand.weights.verifying import sums_of, verified

Progress = Callable[[int, int], None]  # bytes of the file done, bytes in all


class Claim:
    """One engine's hold on a loaded model, until it is released; again is allowed."""

    def __init__(self, taken: threading.Lock) -> None:
        self._taken: threading.Lock | None = taken

    def release(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.release()


class LateTokenizer:
    """A model's tokenizer, which is read when it is first asked for. Any thread may ask."""

    def __init__(self, model: Path, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._found: Tokenizer | None = None

    def __call__(self) -> Tokenizer:
        """Raises CheckpointError, UnsupportedModel."""
        with self._lock:
            if self._found is None:
                with closing(open_checkpoint(self._model)) as checkpoint:
                    self._found = self._read(checkpoint)
            return self._found

    def take(self, checkpoint: Checkpoint) -> None:
        """Read it now, from the checkpoint that is open."""
        with self._lock:
            self._found = self._read(checkpoint)

    def _read(self, checkpoint: Checkpoint) -> Tokenizer:
        with _uncollected():
            tokenizer = read_tokenizer(checkpoint)
            tokenizer.check_width(self._vocab_size)
            return tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """All that an engine needs, ready.

    The spec's context is the budget's: where memory allows no more, lower than the model's own.
    """

    spec: ModelSpec
    text: LateTokenizer
    executor: Executor
    store: KVStore
    budget: Budget
    limits: Limits
    options: LoadOptions
    max_logit_rows: int
    weights: LoadReport
    adapters: Mapping[str, AdapterFacts]
    times: LoadTimes
    draft: LoadedModel | None = None  # guesses for this one
    pack_writer: threading.Thread | None = None  # writes the packed form, if it was not there
    _in_use: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def claim(self) -> Claim:
        """Take the model for one engine: two would share scratch memory and blocks.

        Raises InvalidRequest while another has it.
        """
        if not self._in_use.acquire(blocking=False):
            raise InvalidRequest("model", "another LLM runs this loaded model; close it first")
        return Claim(self._in_use)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text()

    @property
    def trace_block_ids(self) -> tuple[int, ...]:
        """Blocks for one sequence that no request can have: a trace never touches a running one."""
        if isinstance(self.store, ContiguousStore):
            return (SPARE,)
        return tuple(range(self.budget.num_blocks, self.store.num_blocks))

    @property
    def swapping(self) -> SwapFacts | None:
        """What shards cost so far; None where all weights stay."""
        return self.executor.swap_facts() if isinstance(self.executor, Swaps) else None

    @property
    def compiled_steps(self) -> CompileFacts | None:
        """What compiled steps did so far; None where nothing is compiled."""
        return self.executor.compiled_steps() if isinstance(self.executor, Compiles) else None


def load_model(
    model: str | Path,
    options: LoadOptions,
    progress: Progress | None = None,
    *,
    late_text: bool = False,
) -> LoadedModel:
    """Load a model by its name, path or hub id; nothing is fetched. `late_text`: its tokenizer is
    read when it is first asked for, by a caller who works with ids alone. A model that has a
    manifest is compared with it meanwhile.

    Raises ModelNotFound, CheckpointError, BadHash, UnsupportedModel, InvalidRequest (an option), or
    CapacityExceeded when weights, scratch and one sequence do not fit the limit: before the
    weights are read, as far as that can be told.
    """
    began_s = time.perf_counter()
    environment = read_environment()
    path = resolve(str(model), environment).path
    with verified(path, sums_of(environment), trusted=environment.trusted_keys):
        return _load(path, options, progress, began_s, late_text=late_text)


def _load(
    path: Path, options: LoadOptions, progress: Progress | None, began_s: float, *, late_text: bool
) -> LoadedModel:
    clock = time.perf_counter
    environment = read_environment()
    with _uncollected(), closing(open_checkpoint(path)) as checkpoint:
        spec = read_spec(checkpoint, options.max_context, options.family)
        planned = _plan_draft(spec, options)
        draft_bytes = 0 if planned is None else planned.num_bytes
        expected = planning.expect(checkpoint, spec, options, draft_bytes)
        opened_s = clock()
        executor = new_executor(options, environment)
        packing = _packing(options, environment, checkpoint, executor)
        read = reader(checkpoint, spec, options.quantization)
        in_shards = options.load == "shards"
        packed = None if packing is None else packing.open(sparing=in_shards)
        if packed is None and packing is not None and in_shards:
            packing.make(read, progress)
            packed = packing.open(sparing=True)
        started_s = clock()
        # The packed form is being read by now, beside what only one thread can do.
        text = LateTokenizer(path, spec.vocab_size)
        if not late_text:
            text.take(checkpoint)
        draft = None if planned is None else _load_draft(planned, text)
        tokenized_s = clock()
        weights = read(executor, progress, packed)
        loaded_s = clock()
    max_logit_rows = options.max_logit_rows or expected.max_sequences
    guesses = guess_config(options.speculative_config)
    if guesses is not None and options.max_logit_rows is None:
        wanted = expected.max_sequences * guesses.num_speculative_tokens
        max_logit_rows += min(wanted, MAX_STEP_GUESSES)
    max_logit_rows = min(max_logit_rows, options.max_step_tokens)
    executor.prepare(families.program(spec), options.max_step_tokens, max_logit_rows)
    adapters = add_adapters(executor, families.family(spec).slots(spec), options, environment)
    if in_shards:
        room_bytes = planning.weights_room(expected, executor.memory(), spec, options)
        swap_weights(executor, packing, packed, room_bytes)
    budget = planning.settle(expected, executor.memory(), spec, options)
    limits = Limits(
        vocab_size=spec.vocab_size,
        context_length=budget.context_length,
        max_sequences=budget.max_sequences,
        max_step_tokens=options.max_step_tokens,
        adapters=tuple(adapters),
        max_guesses=0 if guesses is None else guesses.num_speculative_tokens,
        max_step_guesses=max(0, max_logit_rows - budget.max_sequences),
    )
    store = new_store(executor, spec, limits, budget, options)
    ready_s = clock()
    writer = None if packing is None else packing.write_later(weights)
    return LoadedModel(
        spec=replace(spec, context_length=budget.context_length),
        text=text,
        executor=executor,
        store=store,
        budget=budget,
        limits=limits,
        options=options,
        max_logit_rows=max_logit_rows,
        weights=weights,
        adapters=adapters,
        draft=draft,
        pack_writer=writer,
        times=_times(began_s, opened_s, started_s, tokenized_s, loaded_s, ready_s),
    )


def _times(
    began_s: float,
    opened_s: float,
    started_s: float,
    tokenized_s: float,
    loaded_s: float,
    ready_s: float,
) -> LoadTimes:
    return LoadTimes(
        open_ms=(opened_s - began_s) * 1e3,
        executor_ms=(started_s - opened_s) * 1e3,
        tokenizer_ms=(tokenized_s - started_s) * 1e3,
        weights_ms=(loaded_s - tokenized_s) * 1e3,
        prepare_ms=(ready_s - loaded_s) * 1e3,
        total_ms=(ready_s - began_s) * 1e3,
    )


def plan_model(model: str | Path, options: LoadOptions) -> tuple[ModelSpec, Budget]:
    """What a load would share out, from estimates: no weight is read. Raises as `load_model`."""
    resolved = resolve(str(model), read_environment())
    with closing(open_checkpoint(resolved.path)) as checkpoint:
        spec = read_spec(checkpoint, options.max_context, options.family)
        draft = _plan_draft(spec, options)
        draft_bytes = 0 if draft is None else draft.num_bytes
        return spec, planning.expect(checkpoint, spec, options, draft_bytes)


@dataclass(frozen=True, slots=True)
class _DraftPlan:
    """What to load as a draft; `num_bytes` are what it takes in this process."""

    model: str
    options: LoadOptions
    num_bytes: int


def _plan_draft(spec: ModelSpec, options: LoadOptions) -> _DraftPlan | None:
    """Its own context where that is shorter, and no more cache than is enough beside another."""
    guesses = guess_config(options.speculative_config)
    if guesses is None or not guesses.model:
        return None
    path = resolve(guesses.model, read_environment()).path
    with closing(open_checkpoint(path)) as checkpoint:
        context_length = min(read_spec(checkpoint).context_length, spec.context_length)
        held = draft_options(options, context_length)
        budget = planning.expect(checkpoint, read_spec(checkpoint, context_length), held)
    room_bytes = budget.shared_bytes * 17 // 16  # an estimate
    if budget.limit.num_bytes is not None:
        held = replace(held, memory_limit=room_bytes)
    return _DraftPlan(guesses.model, held, room_bytes - budget.fixed.process_bytes)


def _load_draft(plan: _DraftPlan, text: LateTokenizer) -> LoadedModel:
    """Raises InvalidRequest where a token of the one is not that of the other."""
    draft = load_model(plan.model, plan.options, late_text=True)
    difference = text().difference(draft.tokenizer)
    if difference is not None:
        message = f"{plan.model} has another vocabulary than the model: {difference}"
        raise InvalidRequest(f"{FIELD}.model", message)
    return draft


def pack_model(
    model: str | Path, quantization: Quantization, progress: Progress | None = None
) -> PackedFile:
    """Make the packed form of a model now, however small, unless it is there; it is checked whole.

    Raises as `load_model` does; CheckpointError if the model changes meanwhile; CapacityExceeded
    when the disk is full.
    """
    options = LoadOptions(quantization=quantization)
    environment = read_environment()
    resolved = resolve(str(model), environment)
    with _uncollected(), closing(open_checkpoint(resolved.path)) as checkpoint:
        spec = read_spec(checkpoint)
        executor = new_executor(options, environment)
        if not isinstance(executor, KeepsPacked):
            raise EngineError(f"the {executor.name} executor has no packed form")
        packing = Packing(environment.home, checkpoint, quantization, executor)
        found = packing.whole()
        if found is not None:
            return found
        return PackedFile(packing.make(reader(checkpoint, spec, quantization), progress))


@contextmanager
def _uncollected() -> Iterator[None]:
    """A vocabulary is a hundred thousand new objects, none of them garbage; to look for some, again
    and again, takes a quarter of the time that making them does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _packing(
    options: LoadOptions, environment: Environment, checkpoint: Checkpoint, executor: Executor
) -> Packing | None:
    """The packed form on disk, where it is wanted and the executor has one."""
    wanted = options.pack_cache and environment.pack_cache
    if not wanted or not isinstance(executor, KeepsPacked):
        return None
    return Packing(environment.home, checkpoint, options.quantization, executor)
