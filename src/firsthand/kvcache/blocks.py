"""Which block belongs to whom, in integers: counts of owners, and two queues of free blocks.

Owns: the invariant free + used == total, after every call; the order in which blocks are reused.
May not know: arrays, layers, token ids, requests; what a key means.
Read next: `prefix.py`, which finds blocks by what they hold; `paged.py`, the memory behind the ids.

A block is in one of three states. *Used*: it has owners, one or more. *Free*: nobody's, content
unknown. *Cached*: nobody's, but published under a key, so that it can be found again until its
memory is needed. Cached blocks are free memory: they are given out when no free one is left, the
one that nobody used for longest first.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each, numbered from 0. A `BlockMemory` that grows.

    Of the free blocks, the one freed last is given out first: its memory pages are already there,
    so a quiet server keeps the resident memory of its busiest moment and no more.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: dict[int, None] = {}  # least recently used first
        self._num_owners = [0] * num_blocks
        self._key_of: dict[int, Hashable] = {}  # the published blocks, used or cached
        self._block_of: dict[Hashable, int] = {}
        self._num_evictions = 0

    @property
    def grows(self) -> bool:
        return True

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could give now, the cached ones among them."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody has, but that can be found by their key."""
        return len(self._cached)

    @property
    def cached(self) -> Collection[int]:
        """Their ids, the least recently used first."""
        return self._cached.keys()

    @property
    def num_used(self) -> int:
        return self._num_blocks - self.num_free

    @property
    def num_evictions(self) -> int:
        """Cached blocks given out for something else, since the beginning."""
        return self._num_evictions

    def num_owners(self, block_id: int) -> int:
        """How many `allocate` and `share` calls have not been freed yet."""
        return self._num_owners[block_id]

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """That many blocks with one owner each, or None (and no change) when fewer are free."""
        if count > self.num_free:
            return None
        taken = tuple(self._take() for _ in range(count))
        for block_id in taken:
            self._num_owners[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One owner more for blocks that are used or cached. Raises ValueError on a free one."""
        for block_id in block_ids:
            if not self._num_owners[block_id]:
                if block_id not in self._cached:
                    raise ValueError(f"block {block_id} holds nothing to share")
                del self._cached[block_id]
            self._num_owners[block_id] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """One owner less for each. `block_ids` are in the order of a sequence: its tail becomes
        reusable before its head, because a prefix is worth more than what follows it.

        A block that is not in use is our own bug, so it raises ValueError.
        """
        for block_id in reversed(tuple(block_ids)):
            if not 0 <= block_id < self._num_blocks or not self._num_owners[block_id]:
                raise ValueError(f"block {block_id} is not in use")
            self._num_owners[block_id] -= 1
            if self._num_owners[block_id]:
                continue
            if block_id in self._key_of:
                self._cached[block_id] = None
            else:
                self._free.append(block_id)

    def publish(self, block_id: int, key: Hashable) -> bool:
        """Let a used block be found by `key` from now on: nobody may write into it any more.

        False, and no change, if the key is another block's already.
        """
        if not self._num_owners[block_id] or block_id in self._key_of:
            raise ValueError(f"block {block_id} is not in use, or published already")
        if key in self._block_of:
            return False
        self._key_of[block_id] = key
        self._block_of[key] = block_id
        return True

    def lookup(self, key: Hashable) -> int | None:
        """The block published under `key`, used or cached. `share` it before the next call."""
        return self._block_of.get(key)

    def is_published(self, block_id: int) -> bool:
        return block_id in self._key_of

    def unpublish(self, block_ids: Iterable[int]) -> None:
        """Nobody shall find these blocks again; who has one keeps it."""
        for block_id in block_ids:
            key = self._key_of.pop(block_id, None)
            if key is None:
                continue
            del self._block_of[key]
            if block_id in self._cached:
                del self._cached[block_id]
                self._free.append(block_id)

    def check(self) -> None:
        """Raise AssertionError unless every block is in exactly one state. O(blocks)."""
        used = {block_id for block_id, owners in enumerate(self._num_owners) if owners > 0}
        free, cached = set(self._free), set(self._cached)
        assert min(self._num_owners) >= 0, "a count below zero"
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached | used & (free | cached), "a block in two states"
        assert len(free) + len(cached) + len(used) == self._num_blocks, "a block is lost"
        assert cached <= self._key_of.keys(), "a cached block has no key"
        assert not free & self._key_of.keys(), "a free block has a key"
        assert self._block_of == {key: block_id for block_id, key in self._key_of.items()}

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        block_id = next(iter(self._cached))
        del self._cached[block_id]
        del self._block_of[self._key_of.pop(block_id)]
        self._num_evictions += 1
        return block_id
