"""The contiguous cache's memory: one region of slots per sequence, in an arena.

Owns: which region is whose, and that its content follows it.
May not know: arrays, layers, token ids, requests.
Read next: `memory/arena.py`; `contiguous.py`, which moves the content.

The other way is `blocks.py`: blocks of one size fit anywhere, so there is nothing to compact and
no length to know beforehand. This one stays as the baseline: here reservations by length,
fragmentation and compaction are real, and can be watched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from firsthand.memory.arena import Arena, ArenaFacts

HEADROOM = 1.2


class Mover(Protocol):
    """The store, as far as a region's move concerns it."""

    def move_slots(self, source: int, target: int, count: int) -> None:
        """In every layer, slots source … become slots target …; the two may overlap. All three
        are multiples of the pool's block size."""
        ...


class RegionPool:
    """`num_blocks · block_size` slots; the memory of a scheduler that does not grow.

    A region is as long as its sequence can ever get, times `headroom`, in whole blocks. The
    headroom is room, never length: no sequence is let past the context or its own `max_tokens`,
    and nothing is written there. A sequence's whole length is known at its admission, so today the
    factor buys nothing and its cost is what can be seen; it is for whoever writes past the end
    (a draft that is then refused) or goes on in the same region. 1.0 switches it off.

    An id stays its region's while compaction moves it: ask `block_start` in every step. It is never
    used twice, so a second free is always noticed.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        mover: Mover,
        *,
        clock: Callable[[], float],
        headroom: float = HEADROOM,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        if not 1 <= headroom <= 8:
            raise ValueError(f"a headroom of {headroom} is not in 1 … 8")
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._headroom = headroom
        self._arena = Arena(
            num_blocks * block_size, granule=block_size, move=mover.move_slots, clock=clock
        )

    @property
    def grows(self) -> bool:
        """A region has its length from the beginning."""
        return False

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        """The unit in which room is counted."""
        return self._block_size

    @property
    def num_free(self) -> int:
        return self._num_blocks - self.num_used

    @property
    def num_used(self) -> int:
        return self._arena.facts().num_used // self._block_size

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """The id of a region of at least `count` blocks; None, and no change, without room.

        With everything free any count up to `num_blocks` fits: there the headroom gives way.
        """
        if count > self._num_blocks:
            return None
        roomy = min(math.ceil(count * self._headroom), self._num_blocks)
        region_id = self._arena.allocate(roomy * self._block_size)
        return None if region_id is None else (region_id,)

    def free(self, block_ids: Iterable[int]) -> None:
        """Give regions back. One that is not in use is our own bug, so it raises ValueError."""
        for region_id in block_ids:
            self._arena.free(region_id)

    def block_start(self, block_id: int) -> int:
        """The slot at which a region begins now; true until the next `allocate`."""
        return self._arena.start(block_id)

    def facts(self) -> ArenaFacts:
        """In slots."""
        return self._arena.facts()
