"""A picture of who runs and who waits, taken between two steps, for whoever watches.

Owns: the bound on its size, and the order of those that wait.
May not know: who looks, text, what a block holds.
Read next: `picture.py`, the values; `scheduler.py`, which has it taken.

Nothing is kept for it: what it costs is paid when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from firsthand.kvcache.prefix import PrefixCache
from firsthand.scheduling.picture import Picture, Pictured, Runs
from firsthand.scheduling.policy import Policy, level
from firsthand.scheduling.running import Running
from firsthand.scheduling.sequence import Sequence
from firsthand.scheduling.waiting import Queue

MAX_PICTURED = 1024  # that wait; more are only counted


def picture_of(
    running: Running, queue: Queue, prefix: PrefixCache | None, policy: Policy, now_s: float
) -> Picture:
    def pictured(sequence: Sequence) -> Pictured:
        waited_s = 0.0 if sequence.is_running else now_s - sequence.arrival_s
        return Pictured(
            sequence.request.request_id,
            sequence.index,
            sequence.class_index,
            level(sequence.class_index, waited_s, policy.ageing_s),
            sequence.arrival_s,
            sequence.num_prompt_tokens,
            len(sequence.known),
            sequence.num_computed,
            sequence.num_preemptions,
            runs_of(sequence.block_ids),
        )

    waiting = islice(queue.sequences().values(), MAX_PICTURED)
    return Picture(
        now_s,
        tuple(map(pictured, running.sequences.values())),
        tuple(sorted(map(pictured, waiting), key=lambda one: (one.level, not one.num_preemptions))),
        () if prefix is None else runs_of(sorted(prefix.pool.cached)),
        tuple(policy.shares),
    )


def runs_of(ids: Iterable[int]) -> Runs:
    """Neighbours as one: (first, count)."""
    runs: list[tuple[int, int]] = []
    for one in ids:
        if runs and one == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((one, 1))
    return tuple(runs)
