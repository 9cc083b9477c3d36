"""The memory of keys and values that a loaded model gets.

Owns: which kind of store it is, and how many blocks it has.
May not know: how a budget came to be, what a block holds.
Read next: `loading.py`, the caller; `kvcache/store.py`.
"""

from __future__ import annotations

from firsthand.compute.executor import Executor, OwnsStores
from firsthand.errors import CapacityExceeded
from firsthand.generation.load_options import LoadOptions
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.kvcache.paged import PagedStore
from firsthand.kvcache.store import KVStore
from firsthand.memory.budget import Budget
from firsthand.models.spec import ModelSpec
from firsthand.scheduling.limits import Limits


def new_store(
    executor: Executor, spec: ModelSpec, limits: Limits, budget: Budget, options: LoadOptions
) -> KVStore:
    """What the budget gives, and blocks for one sequence more, which only a trace ever fills."""
    sizes = (spec.num_layers, spec.num_kv_heads, spec.head_size)
    num_blocks = budget.num_blocks + -(-limits.context_length // budget.block_size)
    if isinstance(executor, OwnsStores):
        return executor.new_store(num_blocks, budget.block_size, options.kv_dtype)
    try:
        if options.kv_store == "contiguous":
            return ContiguousStore(
                *sizes,
                num_slots=budget.num_blocks * budget.block_size,
                max_tokens=limits.context_length,
                kv_dtype=options.kv_dtype,
                layout=options.kv_layout,
            )
        return PagedStore(
            *sizes,
            num_blocks=num_blocks,
            block_size=budget.block_size,
            kv_dtype=options.kv_dtype,
            layout=options.kv_layout,
        )
    except MemoryError:
        raise CapacityExceeded(
            f"no room for the keys and values of {budget.max_sequences} sequences of "
            f"{budget.context_length} tokens; lower max_context or max_sequences"
        ) from None
