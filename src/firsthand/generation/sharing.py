"""Who shares out the cache of a loaded model: its memory in integers, and the scheduler over it.

Owns: the choice between paged and contiguous, fair and static.
May not know: how any of them works.
Read next: `scheduling/scheduler.py`, `kvcache/blocks.py`, `kvcache/regions.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from firsthand.generation.loading import LoadedModel
from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.kvcache.prefix import PrefixCache
from firsthand.kvcache.regions import RegionPool
from firsthand.scheduling.policy import Policy
from firsthand.scheduling.scheduler import Scheduler
from firsthand.scheduling.waiting import Queue, StaticQueue


def build_scheduler(
    loaded: LoadedModel,
    clock: Callable[[], float],
    policy: Policy | None = None,
    queue: Queue | None = None,
) -> Scheduler:
    """A scheduler over all of the model's cache, with nothing in it. `clock` times compactions.
    `queue` stands in the place of the one that the options say."""
    budget, limits, options = loaded.budget, loaded.limits, loaded.options
    if queue is None and options.scheduler == "static":
        queue = StaticQueue(limits.max_sequences)
    if isinstance(loaded.store, ContiguousStore):
        regions = RegionPool(budget.num_blocks, budget.block_size, loaded.store, clock=clock)
        loaded.store.follow(regions.block_start)
        return Scheduler(limits, regions, policy=policy, queue=queue)
    pool = BlockPool(budget.num_blocks, budget.block_size)
    prefix = PrefixCache(pool) if options.prefix_cache else None
    return Scheduler(limits, pool, prefix=prefix, policy=policy, queue=queue)
