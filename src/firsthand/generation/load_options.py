"""How a model is to be held and run: the options of a load, checked.

Owns: their names, defaults and ranges.
May not know: files, how an option is carried out.
Read next: `loading.py`, which carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, TypedDict, get_args

from firsthand.checks import check_choice, check_integer, shown
from firsthand.compute.buckets import check_buckets
from firsthand.config import MAX_THREADS
from firsthand.engine.guessing.config import guess_config
from firsthand.engine.microbatch import Window
from firsthand.errors import InvalidRequest
from firsthand.kvcache.arrays import TILE, KVLayout, KVType
from firsthand.kvcache.paged import BLOCK_SIZE
from firsthand.memory.budget import DEFAULT_LIMIT, share_of
from firsthand.scheduling.limits import Limits
from firsthand.values import dataclass
from firsthand.weights.sources import Quantization

ExecutorName = Literal["native", "torch", "triton"]
KVStoreName = Literal["paged", "contiguous"]
SchedulerName = Literal["fair", "static"]
MAX_BLOCK_SIZE = 1024
MAX_ADAPTERS = 64
MAX_ADAPTER_NAME = 256
Attention = Literal["formula", "tiled", "fast"]
LoadWay = Literal["whole", "shards"]


# What counts as not given, and which executors take it.
_TAKEN_BY: MappingProxyType[str, tuple[tuple[object, ...], tuple[ExecutorName, ...]]] = (
    MappingProxyType(
        {
            "attention": ((None,), ("torch",)),
            "compile": ((False,), ("torch", "triton")),
            "compile_buckets": ((None,), ("torch", "triton")),
            "deterministic": ((False,), ("torch", "triton")),
            "threads": ((None,), ("native",)),
            "disabled_rules": (((), []), ("native", "triton")),
            "pack_cache": ((True,), ("native",)),
            "load": (("whole",), ("native",)),
            "kv_store": (("paged",), ("native", "torch")),
        }
    )
)


class LoadKeywords(TypedDict, total=False):
    """The fields of `LoadOptions`, as keyword arguments."""

    executor: ExecutorName
    device: str
    quantization: Quantization
    family: str | None
    max_context: int | None
    threads: int | None
    kv_dtype: KVType
    kv_layout: KVLayout
    kv_store: KVStoreName
    block_size: int
    prefix_cache: bool
    scheduler: SchedulerName
    max_step_tokens: int
    max_sequences: int | None
    max_logit_rows: int | None
    max_batch_size: int
    max_batch_wait_s: float
    min_batch_size: int
    memory_limit: int | str
    disabled_rules: Sequence[str]
    attention: Attention | None
    pack_cache: bool
    load: LoadWay
    compile: bool
    compile_buckets: Sequence[int] | None
    deterministic: bool
    lora: Mapping[str, str] | None
    speculative_config: Mapping[str, bool | int | str] | None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is to be held and run. An option that the executor has no use for is refused.

    `executor`: native, or torch (the extra), or triton (torch and gpu). `device`: cpu; torch also
    has cuda, and triton nothing else. `quantization`: auto, none, int8 or int4. `family`: one of
    your own, `file.py:NAME`, for a folder whose architecture has no row. `max_context`: None is the
    model's own. `threads` (native): None is one per core. `kv_dtype`: int16, float16,
    float32 or int8. `kv_layout`: tiles or rows, how keys lie in memory (on a card in rows).
    `kv_store`: paged, in blocks of `block_size` tokens, or contiguous, one run per sequence (not
    with triton). `prefix_cache`: keep blocks of ended sequences for prompts that begin alike
    (paged).
    `scheduler`: fair, or static, a batch that nobody joins before it has ended.
    `max_step_tokens`: what one step computes at most; longer prompts take several steps.
    `max_sequences`: how many run at once; None is as many as memory allows, up to 16.
    `max_logit_rows`: rows of a step whose logits may be asked for; None is one per sequence, all
    that an engine asks for. Requests that generate nothing start when `max_batch_size` of them
    wait, or the oldest has for `max_batch_wait_s`, or `min_batch_size` wait and none runs.
    `memory_limit`: what weights, scratch, KV cache and process may take, in bytes or as "2GiB", or
    as a share of what is free, "80%". `disabled_rules` (native, triton): fusion rules to leave out.
    `attention` (torch): which of its rungs. `pack_cache` (native): use the packed form of the model
    on disk; write it if it is not there. `load` (native): whole, or shards: what does not fit the
    limit is read from the packed form while a step computes. `compile` (torch): steps that fit one
    of the `compile_buckets`, a number of rows each (None: 128, 256, 512, 1024), run compiled; with
    triton as a captured graph (None: 1, 2, 4 … 64). `deterministic` (torch): only algorithms that
    give the same bits in every run; one that has none ends the request; with triton no product of a
    library's. `lora`: adapters to load with the model, names and their folders; a request
    names the one that it wants. `speculative_config`: guess tokens by prompt lookup or a smaller
    model, and keep those that are right; its entries are those of `GuessConfig`.
    """

    executor: ExecutorName = "native"
    device: str = "cpu"
    quantization: Quantization = "auto"
    family: str | None = None
    max_context: int | None = None
    threads: int | None = None
    kv_dtype: KVType = "int16"
    kv_layout: KVLayout = "tiles"
    kv_store: KVStoreName = "paged"
    block_size: int = BLOCK_SIZE
    prefix_cache: bool = True
    scheduler: SchedulerName = "fair"
    max_step_tokens: int = 512
    max_sequences: int | None = None
    max_logit_rows: int | None = None
    max_batch_size: int = 16
    max_batch_wait_s: float = 0.0
    min_batch_size: int = 1
    memory_limit: int | str = DEFAULT_LIMIT
    disabled_rules: Sequence[str] = ()
    attention: Attention | None = None
    pack_cache: bool = True
    load: LoadWay = "whole"
    compile: bool = False
    compile_buckets: Sequence[int] | None = None
    deterministic: bool = False
    lora: Mapping[str, str] | None = None
    speculative_config: Mapping[str, bool | int | str] | None = None

    @property
    def numerics(self) -> str:
        """What of these the bits of an answer depend on. The native executor's are the same on
        every machine."""
        where = () if self.executor == "native" else (self.device,)
        return " ".join((self.executor, *where, self.quantization, self.kv_dtype))

    def __post_init__(self) -> None:
        check_choice("executor", self.executor, get_args(ExecutorName))
        check_choice("quantization", self.quantization, get_args(Quantization))
        check_choice("load", self.load, get_args(LoadWay))
        check_choice("kv_dtype", self.kv_dtype, get_args(KVType))
        check_choice("kv_layout", self.kv_layout, get_args(KVLayout))
        check_choice("kv_store", self.kv_store, get_args(KVStoreName))
        check_choice("scheduler", self.scheduler, get_args(SchedulerName))
        check_integer("block_size", self.block_size, TILE, MAX_BLOCK_SIZE)
        if self.block_size % TILE:
            raise InvalidRequest("block_size", f"must be a multiple of {TILE}")
        if self.max_context is not None:
            check_integer("max_context", self.max_context, 1)
        if self.threads is not None:
            check_integer("threads", self.threads, 1, MAX_THREADS)
        least = 1 if self.max_sequences is None else self.max_sequences
        Limits(1, 1, least, self.max_step_tokens)  # refused now, not after a load
        window_of(self)
        share_of(self.memory_limit)
        if self.max_logit_rows is not None:
            rows = (least, self.max_step_tokens)
            check_integer("max_logit_rows", self.max_logit_rows, *rows)
        rules = self.disabled_rules
        if not isinstance(rules, list | tuple) or not all(isinstance(r, str) for r in rules):
            raise InvalidRequest("disabled_rules", f"must be a list of names, not {shown(rules)}")
        _check_executor(self)
        _check_family(self.family)
        _check_adapters(self.lora)
        guess_config(self.speculative_config)
        if self.load == "shards" and not self.pack_cache:
            raise InvalidRequest("load", "shards are those of the packed form; pack_cache is off")
        if self.compile_buckets is not None and not self.compile:
            raise InvalidRequest("compile_buckets", "is a part of compile, which is off")


def window_of(options: LoadOptions) -> Window:
    """Raises InvalidRequest."""
    return Window(options.max_batch_size, options.max_batch_wait_s, options.min_batch_size)


def draft_options(options: LoadOptions, context_length: int) -> LoadOptions:
    """How a draft is held beside the model that is loaded with `options`."""
    return replace(
        options,
        quantization="auto",
        family=None,
        max_context=context_length,
        kv_store="paged",
        prefix_cache=False,
        max_logit_rows=None,
        load="whole",
        lora=None,
        speculative_config=None,
    )


def _check_family(family: object) -> None:
    if family is not None and not isinstance(family, str):
        raise InvalidRequest("family", f"must be a name, not {shown(family)}")


def _check_executor(options: LoadOptions) -> None:
    if options.executor == "native" and options.device != "cpu":
        raise InvalidRequest("device", f"{shown(options.device)} needs executor torch")
    for field, (left_out, executors) in _TAKEN_BY.items():
        if getattr(options, field) not in left_out and options.executor not in executors:
            message = f"is an option of the {' and '.join(executors)} executor only"
            raise InvalidRequest(field, message)
    check_buckets(options.compile_buckets)


def _check_adapters(lora: object) -> None:
    if lora is None:
        return
    if not isinstance(lora, Mapping) or len(lora) > MAX_ADAPTERS:
        raise InvalidRequest("lora", f"must be at most {MAX_ADAPTERS} names with their folders")
    for name, folder in lora.items():
        if not isinstance(name, str) or not 0 < len(name) <= MAX_ADAPTER_NAME:
            raise InvalidRequest(
                "lora", f"a name has 1 to {MAX_ADAPTER_NAME} characters, not {shown(name)}"
            )
        if not isinstance(folder, str):
            raise InvalidRequest("lora", f"the folder of {name!r} is a path, not {shown(folder)}")
