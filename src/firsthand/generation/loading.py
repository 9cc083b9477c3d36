"""From a name to a loaded model: the one place where file, spec, weights and store meet.

Owns: the order of a load, its options, and the time of each stage.
May not know: how any part works.
Read next: each import below is one stage; then `llm.py`, which starts the engine over the result.

The stages: find the file, check and map it, read its words as a spec; the tokenizer; the weights
into the executor; then the plan, its scratch and the KV store.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypedDict, get_args

from firsthand.checks import check_choice, check_integer, shown
from firsthand.compute.buckets import CompileFacts, Compiles, check_buckets
from firsthand.compute.executor import Executor
from firsthand.config import Environment, read_environment
from firsthand.errors import CapacityExceeded, EngineError, InvalidRequest
from firsthand.generation import planning
from firsthand.generation.packing import KeepsPacked, Packing
from firsthand.generation.report import LoadTimes
from firsthand.kvcache.arrays import TILE, KVLayout, KVType
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.kvcache.paged import BLOCK_SIZE, PagedStore
from firsthand.kvcache.store import KVStore
from firsthand.memory.budget import DEFAULT_LIMIT, Budget, share_of
from firsthand.models import families
from firsthand.models.scaling import ROPE_FACTORS
from firsthand.models.spec import ModelSpec
from firsthand.scheduling.admission import Limits
from firsthand.text.tokenizer import Tokenizer
from firsthand.weights.catalogue import resolve
from firsthand.weights.checkpoint import Checkpoint
from firsthand.weights.loading import LoadReport, load
from firsthand.weights.open import open_checkpoint
from firsthand.weights.packed_file import PackedFile
from firsthand.weights.sources import Quantization, read_vector

Progress = Callable[[int, int], None]  # bytes of the file done, bytes in all


ExecutorName = Literal["native", "torch"]
KVStoreName = Literal["paged", "contiguous"]
MAX_BLOCK_SIZE = 1024
Attention = Literal["formula", "tiled", "fast"]


class LoadKeywords(TypedDict, total=False):
    """The fields of `LoadOptions`, as keyword arguments."""

    executor: ExecutorName
    device: str
    quantization: Quantization
    max_context: int | None
    threads: int | None
    kv_dtype: KVType
    kv_layout: KVLayout
    kv_store: KVStoreName
    block_size: int
    max_step_tokens: int
    max_sequences: int | None
    max_logit_rows: int | None
    memory_limit: int | str
    disabled_rules: Sequence[str]
    attention: Attention | None
    pack_cache: bool
    compile: bool
    compile_buckets: Sequence[int] | None
    deterministic: bool


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is to be held and run. An option that the executor has no use for is refused.

    `executor`: native, or torch (the extra). `device`: cpu; torch also has cuda. `quantization`:
    auto, none, int8 or int4. `max_context`: None is the model's own. `threads` (native): None is
    one per core. `kv_dtype`: float16, float32 or int8. `kv_layout`: tiles or rows, how keys lie in
    memory. `kv_store`: paged, in blocks of `block_size` tokens, or contiguous, one run per
    sequence. `max_step_tokens`: what one step computes at most; longer prompts take several steps.
    `max_sequences`: how many run at once; None is as many as memory allows, up to 16.
    `max_logit_rows`: rows of a step whose logits may be asked for; None is one per sequence, all
    that an engine asks for. `memory_limit`: what weights, scratch, KV cache and process may take,
    in bytes or as "2GiB", or as a share of what is free, "80%". `disabled_rules` (native): fusion
    rules to leave out. `attention`
    (torch): which of its rungs. `pack_cache` (native): use the packed form of the model on disk;
    write it if it is not there. `compile` (torch): steps that fit one of the `compile_buckets`, a
    number of rows each (None: 128, 256, 512, 1024), run compiled. `deterministic` (torch): only
    algorithms that give the same bits in every run; one that has none ends the request.
    """

    executor: ExecutorName = "native"
    device: str = "cpu"
    quantization: Quantization = "auto"
    max_context: int | None = None
    threads: int | None = None
    kv_dtype: KVType = "float16"
    kv_layout: KVLayout = "tiles"
    kv_store: KVStoreName = "paged"
    block_size: int = BLOCK_SIZE
    max_step_tokens: int = 512
    max_sequences: int | None = None
    max_logit_rows: int | None = None
    memory_limit: int | str = DEFAULT_LIMIT
    disabled_rules: Sequence[str] = ()
    attention: Attention | None = None
    pack_cache: bool = True
    compile: bool = False
    compile_buckets: Sequence[int] | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_choice("executor", self.executor, get_args(ExecutorName))
        check_choice("quantization", self.quantization, get_args(Quantization))
        check_choice("kv_dtype", self.kv_dtype, get_args(KVType))
        check_choice("kv_layout", self.kv_layout, get_args(KVLayout))
        check_choice("kv_store", self.kv_store, get_args(KVStoreName))
        check_integer("block_size", self.block_size, TILE, MAX_BLOCK_SIZE)
        if self.block_size % TILE:
            raise InvalidRequest("block_size", f"must be a multiple of {TILE}")
        for name in ("max_context", "threads"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        least = 1 if self.max_sequences is None else self.max_sequences
        Limits(1, 1, least, self.max_step_tokens)  # refused now, not after a load
        share_of(self.memory_limit)
        if self.max_logit_rows is not None:
            rows = (least, self.max_step_tokens)
            check_integer("max_logit_rows", self.max_logit_rows, *rows)
        rules = self.disabled_rules
        if not isinstance(rules, list | tuple) or not all(isinstance(r, str) for r in rules):
            raise InvalidRequest("disabled_rules", f"must be a list of names, not {shown(rules)}")
        if self.executor == "native":
            check_choice("device", self.device, ("cpu",))
            _refuse("attention", self.attention is not None, "torch")
            _refuse("compile", self.compile, "torch")
            _refuse("compile_buckets", self.compile_buckets is not None, "torch")
            _refuse("deterministic", self.deterministic, "torch")
        else:
            _refuse("threads", self.threads is not None, "native")
            _refuse("disabled_rules", bool(self.disabled_rules), "native")
            _refuse("pack_cache", not self.pack_cache, "native")
            check_buckets(self.compile_buckets)
        if self.compile_buckets is not None and not self.compile:
            raise InvalidRequest("compile_buckets", "is a part of compile, which is off")


class Claim:
    """One engine's hold on a loaded model, until it is released; again is allowed."""

    def __init__(self, taken: threading.Lock) -> None:
        self._taken: threading.Lock | None = taken

    def release(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.release()


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """All that an engine needs, ready. The last blocks of the store, as many as one sequence can
    have, are for traces, which therefore never touch a running sequence.

    The spec's context is the budget's: where memory allows no more, lower than the model's own.
    """

    spec: ModelSpec
    tokenizer: Tokenizer
    executor: Executor
    store: KVStore
    budget: Budget
    limits: Limits
    max_logit_rows: int
    weights: LoadReport
    times: LoadTimes
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
    def num_pool_blocks(self) -> int:
        """The store's blocks that requests may have: 0 … num_pool_blocks − 1."""
        return self.store.num_blocks - _blocks_per_sequence(self.limits, self.store.block_size)

    @property
    def trace_block_ids(self) -> tuple[int, ...]:
        return tuple(range(self.num_pool_blocks, self.store.num_blocks))

    @property
    def compiled_steps(self) -> CompileFacts | None:
        """What compiled steps did so far; None where nothing is compiled."""
        return self.executor.compiled_steps() if isinstance(self.executor, Compiles) else None


def load_model(
    model: str | Path, options: LoadOptions, progress: Progress | None = None
) -> LoadedModel:
    """Load a model by its name, path or hub id; nothing is fetched.

    Raises ModelNotFound, CheckpointError, UnsupportedModel, InvalidRequest (an option), or
    CapacityExceeded when weights, scratch and one sequence do not fit the limit: before the
    weights are read, as far as that can be told.
    """
    clock = time.perf_counter
    began_s = clock()
    environment = read_environment()
    resolved = resolve(str(model), environment)
    with _uncollected(), closing(open_checkpoint(resolved.path)) as checkpoint:
        spec = read_spec(checkpoint, options.max_context)
        opened_s = clock()
        tokenizer = read_tokenizer(checkpoint)
        tokenizer.check_width(spec.vocab_size)
        tokenized_s = clock()
        expected = planning.expect(checkpoint, spec, options)
        executor = _executor(options, environment)
        packing = _packing(options, environment, checkpoint, executor)
        packed = None if packing is None else packing.open()
        started_s = clock()
        family = families.family(spec)
        weights = load(
            checkpoint,
            family.slots(spec),
            family.gguf_layout,
            executor,
            options.quantization,
            progress,
            packed,
        )
        loaded_s = clock()
    max_logit_rows = options.max_logit_rows or expected.max_sequences
    executor.prepare(families.program(spec), options.max_step_tokens, max_logit_rows)
    budget = planning.settle(expected, executor.memory(), spec, options)
    limits = Limits(
        vocab_size=spec.vocab_size,
        context_length=budget.context_length,
        max_sequences=budget.max_sequences,
        max_step_tokens=options.max_step_tokens,
    )
    store = _store(spec, limits, budget, options)
    ready_s = clock()
    writer = None if packing is None else packing.write_later(weights)
    return LoadedModel(
        spec=replace(spec, context_length=budget.context_length),
        tokenizer=tokenizer,
        executor=executor,
        store=store,
        budget=budget,
        limits=limits,
        max_logit_rows=max_logit_rows,
        weights=weights,
        pack_writer=writer,
        times=LoadTimes(
            open_ms=(opened_s - began_s) * 1e3,
            tokenizer_ms=(tokenized_s - opened_s) * 1e3,
            executor_ms=(started_s - tokenized_s) * 1e3,
            weights_ms=(loaded_s - started_s) * 1e3,
            prepare_ms=(ready_s - loaded_s) * 1e3,
            total_ms=(ready_s - began_s) * 1e3,
        ),
    )


def plan_model(model: str | Path, options: LoadOptions) -> tuple[ModelSpec, Budget]:
    """What a load would share out, from estimates: no weight is read. Raises as `load_model`."""
    resolved = resolve(str(model), read_environment())
    with closing(open_checkpoint(resolved.path)) as checkpoint:
        spec = read_spec(checkpoint, options.max_context)
        return spec, planning.expect(checkpoint, spec, options)


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
        executor = _executor(options, environment)
        if not isinstance(executor, KeepsPacked):
            raise EngineError(f"the {executor.name} executor has no packed form")
        packing = Packing(environment.home, checkpoint, quantization, executor)
        found = packing.whole()
        if found is not None:
            return found
        family = families.family(spec)
        slots = family.slots(spec)
        report = load(checkpoint, slots, family.gguf_layout, executor, quantization, progress)
        try:
            return PackedFile(packing.write(report))
        except OSError as error:
            raise CapacityExceeded(f"{model}: cannot be packed: {error}") from error


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


def read_spec(checkpoint: Checkpoint, max_context: int | None = None) -> ModelSpec:
    """The spec of an opened checkpoint, from its own words and those beside it."""
    if checkpoint.form == "gguf":
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        factors = checkpoint.tensors.get(ROPE_FACTORS)
        values = None if factors is None else read_vector(checkpoint, factors).tolist()
        return families.read_gguf(checkpoint.metadata, shapes, max_context, values)
    return families.read_config(checkpoint.config, max_context)


def read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    if checkpoint.form == "gguf":
        return Tokenizer.from_gguf(checkpoint.metadata, checkpoint.path)
    return Tokenizer.from_folder(checkpoint.path)


def _executor(options: LoadOptions, environment: Environment) -> Executor:
    """Only the chosen executor is imported: torch is an extra, and slow to start."""
    if options.executor == "native":
        from firsthand.compute.native.executor import NativeExecutor

        return NativeExecutor(
            threads=environment.threads if options.threads is None else options.threads,
            disabled_rules=options.disabled_rules,
            isa=environment.isa or "",
        )
    try:
        from firsthand.compute.torch.executor import TorchExecutor
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        message = "'torch' needs the extra: pip install 'firsthand[torch]'"
        raise InvalidRequest("executor", message) from None
    return TorchExecutor(
        device=options.device,
        attention=options.attention or "fast",
        buckets=check_buckets(options.compile_buckets) if options.compile else (),
        deterministic=options.deterministic,
    )


def _packing(
    options: LoadOptions, environment: Environment, checkpoint: Checkpoint, executor: Executor
) -> Packing | None:
    """The packed form on disk, where it is wanted and the executor has one."""
    wanted = options.pack_cache and environment.pack_cache
    if not wanted or not isinstance(executor, KeepsPacked):
        return None
    return Packing(environment.home, checkpoint, options.quantization, executor)


def _blocks_per_sequence(limits: Limits, block_size: int) -> int:
    return -(-limits.context_length // block_size)


def _store(spec: ModelSpec, limits: Limits, budget: Budget, options: LoadOptions) -> KVStore:
    """What the budget gives, and blocks for one sequence more, which only a trace ever fills."""
    sizes = (spec.num_layers, spec.num_kv_heads, spec.head_size)
    each = _blocks_per_sequence(limits, budget.block_size)
    try:
        if options.kv_store == "contiguous":
            return ContiguousStore(
                *sizes,
                num_sequences=min(budget.num_blocks // each, limits.max_sequences) + 1,
                max_tokens=limits.context_length,
                kv_dtype=options.kv_dtype,
                layout=options.kv_layout,
            )
        return PagedStore(
            *sizes,
            num_blocks=budget.num_blocks + each,
            block_size=budget.block_size,
            kv_dtype=options.kv_dtype,
            layout=options.kv_layout,
        )
    except MemoryError:
        raise CapacityExceeded(
            f"no room for the keys and values of {budget.max_sequences} sequences of "
            f"{budget.context_length} tokens; lower max_context or max_sequences"
        ) from None


def _refuse(field: str, given: bool, executor: str) -> None:
    if given:
        raise InvalidRequest(field, f"is an option of the {executor} executor only")
