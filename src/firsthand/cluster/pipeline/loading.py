"""From a name to a model over stages that the engine can run.

Owns: the order of a load: the stages take their layers, what those cost is measured, the model is
split anew where that pays, and all agree on one number of blocks.
May not know: how stages are reached, how an engine works.
Read next: `stage.py`, `executor.py`; `generation/loading.py`, the same for one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from firsthand.checks import check_choice, check_integer
from firsthand.cluster.pipeline.executor import PipelineExecutor, StageStore
from firsthand.cluster.pipeline.links import Links
from firsthand.cluster.pipeline.micro import RowCost
from firsthand.cluster.pipeline.splits import (
    Costs,
    check_split,
    check_stages,
    choose_split,
    even_split,
)
from firsthand.cluster.pipeline.stage import Loaded
from firsthand.compute.executor import Held
from firsthand.config import read_environment
from firsthand.engine.batching import flat_batch
from firsthand.engine.runner import trace_plans
from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LateTokenizer, LoadedModel
from firsthand.generation.reading import read_spec
from firsthand.generation.report import LoadTimes
from firsthand.memory.budget import Budget, Limit, part_of_limit
from firsthand.models.spec import ModelSpec
from firsthand.scheduling.limits import Limits
from firsthand.values import dataclass
from firsthand.weights.catalogue import resolve
from firsthand.weights.loading import LoadReport
from firsthand.weights.open import open_checkpoint

MAX_PARTS = 64
MEASURED_ROWS = 64  # of the prompt by which costs are measured
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """`split` None: by measured cost, of a step of one `balance`: a token that follows a prompt, or
    the prompt. `num_parts` None: as many in each step as pay."""

    num_stages: int
    split: tuple[int, ...] | None = None
    num_parts: int | None = None
    balance: str = "token"

    def __post_init__(self) -> None:
        check_stages(self.num_stages)
        if self.num_parts is not None:
            check_integer("micro_batches", self.num_parts, 1, MAX_PARTS)
        check_choice("balance", self.balance, ("token", "prompt"))


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A model over stages: `LLM(pipeline.loaded)` runs it. Whoever loaded it closes it, after the
    engine. `measured`: of each layer in ms, for a token and for a prompt of so many rows."""

    loaded: LoadedModel
    executor: PipelineExecutor
    links: Links
    split: tuple[int, ...]
    stages: tuple[Loaded, ...]
    store_bytes: tuple[int, ...]
    token: Costs
    prompt: Costs
    num_prompt_rows: int

    def close(self) -> None:
        self.links.close()


def load_pipeline(
    model: str,
    options: LoadOptions,
    wanted: Wanted,
    connect: Callable[[str, LoadOptions], Links],
) -> Pipeline:
    """`connect` makes as many stages as are wanted. Raises what `load_model` does; EngineLost where
    a stage is lost meanwhile. Whatever fails, the stages are closed."""
    began_s = time.perf_counter()
    _check_options(options)
    path = resolve(model, read_environment()).path
    with closing(open_checkpoint(path)) as checkpoint:
        spec = read_spec(checkpoint, options.max_context)
        check_stages(wanted.num_stages, spec.num_layers)
        if wanted.split is not None:
            check_split(wanted.split, spec.num_layers)
        opened_s = time.perf_counter()
        text = LateTokenizer(path, spec.vocab_size)
        text.take(checkpoint)
    tokenized_s = time.perf_counter()
    links = connect(model, options)
    try:
        return _load(spec, text, options, wanted, links, (began_s, opened_s, tokenized_s))
    except BaseException:
        links.close()
        raise


def _load(
    spec: ModelSpec,
    text: LateTokenizer,
    options: LoadOptions,
    wanted: Wanted,
    links: Links,
    times: tuple[float, float, float],
) -> Pipeline:
    began_s, opened_s, tokenized_s = times
    connected_s = time.perf_counter()
    split = wanted.split or even_split(spec.num_layers, wanted.num_stages)
    stages = links.load(split)
    token, prompt, num_rows = _measure(spec, options, links)
    if wanted.split is None:
        best = choose_split(token if wanted.balance == "token" else prompt, wanted.num_stages)
        if best != split:
            split, stages = best, links.load(best)
    loaded_s = time.perf_counter()
    budget = _together([stage.budget for stage in stages])
    num_blocks = budget.num_blocks + -(-budget.context_length // budget.block_size)
    store_bytes = links.open_stores(num_blocks)
    held = _held(stages)
    executor = PipelineExecutor(
        links, vocab_size=spec.vocab_size, held=held, num_parts=wanted.num_parts
    )
    executor.cost = _row_cost(token, prompt, num_rows)
    ready_s = time.perf_counter()
    loaded = LoadedModel(
        spec=replace(spec, context_length=budget.context_length),
        text=text,
        executor=executor,
        store=_store(options, budget, num_blocks),
        budget=budget,
        limits=Limits(
            vocab_size=spec.vocab_size,
            context_length=budget.context_length,
            max_sequences=budget.max_sequences,
            max_step_tokens=options.max_step_tokens,
        ),
        options=options,
        max_logit_rows=min(options.max_logit_rows or budget.max_sequences, options.max_step_tokens),
        weights=_weights(stages),
        adapters={},
        times=LoadTimes(
            open_ms=(opened_s - began_s) * 1e3,
            tokenizer_ms=(tokenized_s - opened_s) * 1e3,
            executor_ms=(connected_s - tokenized_s) * 1e3,
            weights_ms=(loaded_s - connected_s) * 1e3,
            prepare_ms=(ready_s - loaded_s) * 1e3,
            total_ms=(ready_s - began_s) * 1e3,
        ),
    )
    return Pipeline(
        loaded,
        executor,
        links,
        split,
        tuple(stages),
        tuple(store_bytes),
        token,
        prompt,
        num_rows,
    )


def stage_options(options: LoadOptions, num_on_machine: int, threads: int) -> LoadOptions:
    """Those of a stage that shares its machine with so many, itself among them: its threads, and
    its part of the memory where the limit is a share."""
    limit = part_of_limit(options.memory_limit, num_on_machine)
    return replace(options, threads=options.threads or threads, memory_limit=limit)


def _check_options(options: LoadOptions) -> None:
    """What a stage has no use for is refused."""
    refused = {
        "executor": options.executor != "native",
        "load": options.load != "whole",
        "lora": bool(options.lora),
        "speculative_config": options.speculative_config is not None,
        "kv_store": options.kv_store != "paged",
        "family": options.family is not None,
    }
    for field, given in refused.items():
        if given:
            raise InvalidRequest(field, "is not for a model that is split over stages")


def _measure(spec: ModelSpec, options: LoadOptions, links: Links) -> tuple[Costs, Costs, int]:
    """The quickest of several steps of each kind, and the rows of the prompt."""
    num_rows = max(1, min(MEASURED_ROWS, options.max_step_tokens, spec.context_length - 1))
    num_blocks = -(-(num_rows + 1) // options.block_size)
    links.open_stores(num_blocks)
    executor = PipelineExecutor(links, vocab_size=spec.vocab_size, held=Held(0, 0), num_parts=1)
    store = StageStore(
        num_blocks=num_blocks,
        block_size=options.block_size,
        bytes_per_token=0,
        kv_dtype=options.kv_dtype,
        layout=options.kv_layout,
    )
    ids, blocks = (0,) * (num_rows + 1), tuple(range(num_blocks))
    plans = trace_plans(ids, blocks, num_rows, last_only=True)
    found = []
    for plan in (plans[-1], trace_plans(ids, blocks, num_rows, last_only=False)[0]):
        batch = flat_batch(plan, store)
        executor.run(batch, store)
        tried = [executor.costs(batch, store) for _ in range(REPEATS)]
        found.append(min(tried, key=_sum))
    return found[0], found[1], num_rows


def _row_cost(token: Costs, prompt: Costs, num_rows: int) -> RowCost:
    row_ms = (_sum(prompt) - _sum(token)) / max(1, num_rows - 1)
    return RowCost(fixed_ms=max(0.0, _sum(token) - row_ms), row_ms=max(0.0, row_ms))


def _sum(costs: Costs) -> float:
    return sum(costs.layers) + costs.before + costs.after


def _together(budgets: Sequence[Budget]) -> Budget:
    """What all stages can hold, and what they take together."""
    fixed = budgets[0].fixed
    return replace(
        budgets[0],
        limit=Limit(None, f"each of {len(budgets)} stages has its own"),
        fixed=replace(
            fixed,
            weights_bytes=sum(one.fixed.weights_bytes for one in budgets),
            scratch_bytes=sum(one.fixed.scratch_bytes for one in budgets),
            process_bytes=sum(one.fixed.process_bytes for one in budgets),
        ),
        bytes_per_token=sum(one.bytes_per_token for one in budgets),
        num_blocks=min(one.num_blocks for one in budgets),
        context_length=min(one.context_length for one in budgets),
        max_sequences=min(one.max_sequences for one in budgets),
    )


def _held(stages: Sequence[Loaded]) -> Held:
    return Held(
        weights_bytes=sum(stage.held.weights_bytes for stage in stages),
        scratch_bytes=sum(stage.held.scratch_bytes for stage in stages),
    )


def _store(options: LoadOptions, budget: Budget, num_blocks: int) -> StageStore:
    return StageStore(
        num_blocks=num_blocks,
        block_size=budget.block_size,
        bytes_per_token=budget.bytes_per_token,
        kv_dtype=options.kv_dtype,
        layout=options.kv_layout,
    )


def _weights(stages: Sequence[Loaded]) -> LoadReport:
    """Each tensor once, also where two stages hold it."""
    tensors = {one.name: one for stage in stages for one in stage.weights.tensors}
    aliases = {one.name: one for stage in stages for one in stage.weights.aliases}
    return LoadReport(tuple(tensors.values()), tuple(aliases.values()), stages[0].weights.ignored)
