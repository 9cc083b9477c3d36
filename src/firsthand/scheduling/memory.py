"""What the scheduler asks of a memory, in integers: the seam between scheduling and the pools.

Owns: `BlockMemory`, the interface of `kvcache.blocks.BlockPool` (paged) and of
`kvcache.regions.RegionPool` (contiguous).
May not know: arrays, bytes, token ids, sequences.
Read next: `tables.py`, the only one that changes it; others read its counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class BlockMemory(Protocol):
    """`num_blocks` blocks of `block_size` tokens; num_free + num_used == num_blocks, always.

    A memory that `grows` gives one id per block, and a sequence asks for one more when it has
    filled what it has. One that does not gives one id per sequence, at admission, for the whole
    length that the sequence can reach: a region of `count` blocks side by side. The blocks are
    then only the unit in which room is counted, and nothing is ever shared or published.

    An id is what `SequenceSlice.block_ids` hold and what the store's `block_start` is asked with.
    What a region's id means may change between two steps (compaction moves it), never within one.
    """

    @property
    def grows(self) -> bool: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    @property
    def num_used(self) -> int: ...

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """Room for `count` ≥ 1 blocks: `count` ids if it grows, else one. None, and no change,
        when there is no room now. With every block free, any count up to `num_blocks` fits."""
        ...

    def free(self, block_ids: Iterable[int]) -> None:
        """Take back what `allocate` gave. Raises ValueError on an id that is not in use."""
        ...
