"""Which block belongs to whom, in integers: a free list and nothing more.

Owns: the invariant free + used == total, after every call.
May not know: arrays, layers, token ids, requests.
Read next: `contiguous.py`, the memory behind the ids.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each, numbered from 0.

    The block freed last is given out first: its memory pages are already there, so a quiet
    server keeps the resident memory of its busiest moment and no more.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._used: set[int] = set()

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_free(self) -> int:
        """For the server's metrics; with `num_used` it is always `num_blocks`."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._used)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-num_tokens // self._block_size)

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """That many blocks, or None (and no change) when fewer are free."""
        if count > len(self._free):
            return None
        taken = tuple(self._free.pop() for _ in range(count))
        self._used.update(taken)
        return taken

    def free(self, block_ids: Iterable[int]) -> None:
        """Give blocks back. A block that is not in use is our own bug, so it raises."""
        for block_id in block_ids:
            if block_id not in self._used:
                raise ValueError(f"block {block_id} is not in use")
            self._used.remove(block_id)
            self._free.append(block_id)
