"""A loaded model under another engine: the same weights, nothing loaded again.

Owns: what can be changed after a load, and what must change with it.
May not know: why somebody wants to compare.
Read next: `loading.py` (`LoadedModel`), `sharing.py`, which builds what the options say.

A variant shares the executor, and so the hold on it: only one of them runs at a time.
"""

from __future__ import annotations

from dataclasses import replace

from firsthand.compute.executor import Executor
from firsthand.errors import InvalidRequest
from firsthand.generation.load_options import LoadOptions, SchedulerName
from firsthand.generation.loading import LoadedModel
from firsthand.kvcache.contiguous import ContiguousStore

SET_HERE = ("kv_store", "scheduler", "prefix_cache", "block_size")


def check_plain(options: LoadOptions) -> None:
    """Raise InvalidRequest for an option that a comparison sets itself."""
    plain = LoadOptions()
    for name in SET_HERE:
        if getattr(options, name) != getattr(plain, name):
            raise InvalidRequest(name, "is set by the comparison itself")


def varied(
    loaded: LoadedModel,
    *,
    num_blocks: int | None = None,
    max_step_tokens: int | None = None,
    max_sequences: int | None = None,
    prefix_cache: bool = False,
    scheduler: SchedulerName = "fair",
    executor: Executor | None = None,
    store: ContiguousStore | None = None,
) -> LoadedModel:
    """With some of these changed; sizes can only become smaller. None is as it was loaded."""
    limits, budget = loaded.limits, loaded.budget
    step_tokens = limits.max_step_tokens if max_step_tokens is None else max_step_tokens
    sequences = limits.max_sequences if max_sequences is None else max_sequences
    return replace(
        loaded,
        budget=budget if num_blocks is None else replace(budget, num_blocks=num_blocks),
        limits=replace(
            limits, max_step_tokens=step_tokens, max_sequences=min(sequences, step_tokens)
        ),
        options=replace(loaded.options, prefix_cache=prefix_cache, scheduler=scheduler),
        executor=loaded.executor if executor is None else executor,
        store=loaded.store if store is None else store,
    )


def contiguous_store(loaded: LoadedModel, num_blocks: int, max_tokens: int) -> ContiguousStore:
    """As much memory as so many blocks of the paged store, for sequences of that length at most."""
    spec, options = loaded.spec, loaded.options
    return ContiguousStore(
        spec.num_layers,
        spec.num_kv_heads,
        spec.head_size,
        num_slots=num_blocks * loaded.budget.block_size,
        max_tokens=max_tokens,
        kv_dtype=options.kv_dtype,
        layout=options.kv_layout,
    )
