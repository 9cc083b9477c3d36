"""Block tables: which blocks a sequence gets, shares, copies, publishes and gives back.

Owns: every call that the scheduler makes to a memory, and the copies of the step being planned.
May not know: who should run; budgets; time.
Read next: `scheduler.py`.

No block is written that has more than one owner. A sequence that shares blocks and would write
into the last of them takes a new block instead, has the old one copied into it before the step
computes, and drops its share: copy on write.
"""

from __future__ import annotations

from collections.abc import Iterable

from firsthand.kvcache.prefix import PrefixCache
from firsthand.request import Request
from firsthand.scheduling.memory import BlockMemory
from firsthand.scheduling.plan import BlockCopy
from firsthand.scheduling.sequence import NEVER, Sequence


class Tables:
    """A memory and, if blocks are to be shared, the cache of its prefixes.

    Raises ValueError if `prefix` belongs to another memory.
    """

    def __init__(self, memory: BlockMemory, prefix: PrefixCache | None) -> None:
        if prefix is not None and prefix.pool is not memory:
            raise ValueError("a prefix cache shares the blocks of its own pool only")
        self._memory = memory
        self._prefix = prefix
        self._size = memory.block_size
        self._copies: list[BlockCopy] = []

    @property
    def shares(self) -> bool:
        """Whether sequences can have blocks in common."""
        return self._prefix is not None

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)

    def admit(
        self, sequence: Sequence, num_tokens: int, spare: int, donor: Sequence | None
    ) -> bool:
        """Blocks for `num_tokens` ≥ len(known), found or new, while `spare` others stay free.

        `donor` is a running sequence of the same request with a computed prompt. False, and no
        change, when there is no room. On success `num_computed` tells what was found; at least one
        token is always left to compute, so that there are logits to draw from.
        """
        if not self._memory.grows:
            num_tokens = sequence.max_stored
        shared, start = self._found(sequence, donor)
        is_copied = start % self._size != 0
        fresh = self.num_blocks(num_tokens) - len(shared) + is_copied
        # Looked at before sharing, which takes cached blocks out of those that count as free.
        if fresh + spare > self._memory.num_free or not self._share(shared, fresh + spare):
            return False
        taken = self._memory.allocate(fresh)
        if taken is None:
            self._memory.free(shared)
            return False
        if is_copied:
            self._copies.append(BlockCopy(shared[-1], taken[0]))
            self._memory.free(shared[-1:])
            shared = shared[:-1]
        sequence.block_ids = shared + taken
        sequence.capacity = self.num_blocks(num_tokens) * self._size
        sequence.num_computed = start
        if sequence.chain is not None:
            sequence.publish_at = (sequence.chain.num_published + 1) * self._size
        return True

    def grow(self, sequence: Sequence) -> bool:
        """One block more at the end of a running sequence; False when none is free."""
        taken = self._memory.allocate(1)
        if taken is None:
            return False
        sequence.block_ids += taken
        sequence.capacity += self._size
        return True

    def lend(self, sequence: Sequence, num_guesses: int) -> int:
        """Blocks for that many guesses beyond the known tokens, until `take_back`; for how many
        there is room. They are nobody's loss: between plan and commit no one asks for a block."""
        wanted = len(sequence.known) + num_guesses
        while sequence.capacity < wanted and self.grow(sequence):
            sequence.num_lent += 1
        return min(wanted, sequence.capacity) - len(sequence.known)

    def take_back(self, sequence: Sequence) -> None:
        """The blocks lent that hold none of the computed tokens: what a guess that was refused
        wrote is forgotten, and the next step asks for a block as it would without guesses."""
        size = self._size
        while sequence.num_lent and sequence.capacity - size >= sequence.num_computed:
            sequence.num_lent -= 1
            sequence.capacity -= size
            self._memory.free(sequence.block_ids[-1:])
            sequence.block_ids = sequence.block_ids[:-1]
        sequence.num_lent = 0

    def publish(self, sequence: Sequence) -> None:
        """Let others find what became full and computed. Call when `publish_at` is reached."""
        prefix, chain = self._prefix, sequence.chain
        assert prefix is not None, "only a sequence with a chain has something to publish"
        assert chain is not None, "see above"
        while sequence.publish_at <= sequence.num_computed:
            prefix.publish(chain, sequence.known, sequence.block_ids[chain.num_published])
            sequence.publish_at += self._size

    def release(self, sequence: Sequence, *, failed: bool = False) -> None:
        """Give up the blocks. What a `failed` sequence wrote shall not be found by others."""
        if failed and self._prefix is not None:
            self._prefix.unpublish(sequence.block_ids)
        self._memory.free(sequence.block_ids)
        sequence.block_ids = ()
        sequence.capacity = 0
        sequence.num_computed = 0
        sequence.publish_at = NEVER
        sequence.num_lent = 0

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies since the last call, in the order in which they must be made."""
        if not self._copies:
            return ()
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise AssertionError unless memory and tables agree (I1, I2). O(blocks)."""
        num_owners: dict[int, int] = {}
        num_held = 0
        for sequence in running:
            num_held += self.num_blocks(sequence.capacity)
            assert sequence.num_computed <= sequence.capacity, "computed without a block"
            for block_id in sequence.block_ids:
                num_owners[block_id] = num_owners.get(block_id, 0) + 1
            if self._prefix is not None:
                self._check_writable(self._prefix, sequence)
        memory = self._memory
        assert memory.num_free + memory.num_used == memory.num_blocks, "a block is lost"
        # A region may be larger than what its sequence asked for, and has one id.
        least, most = (len(num_owners),) * 2 if memory.grows else (num_held, memory.num_blocks)
        assert least <= memory.num_used <= most, "a block in use has no sequence"
        assert num_owners or not memory.num_used, "a block in use has no sequence"
        if self._prefix is not None:
            pool = self._prefix.pool
            pool.check()
            for block_id, count in num_owners.items():
                assert pool.num_owners(block_id) == count, "a count differs from the tables"

    def _check_writable(self, prefix: PrefixCache, sequence: Sequence) -> None:
        for block_id in sequence.block_ids[sequence.num_computed // self._size :]:
            assert prefix.pool.num_owners(block_id) == 1, "a block to be written is shared"
            assert not prefix.pool.is_published(block_id), "a block to be written is published"

    def _found(self, sequence: Sequence, donor: Sequence | None) -> tuple[tuple[int, ...], int]:
        """Blocks that hold the first tokens already, and how many tokens they hold."""
        prefix = self._prefix
        if prefix is None:
            return (), 0
        chain = sequence.chain
        if chain is None:
            chain = sequence.chain = prefix.chain(_scope(sequence.request))
        # A block is found whole or not at all.
        shared = prefix.match(chain, sequence.known, sequence.num_findable // self._size)
        start = len(shared) * self._size
        if donor is None or donor.chain is None:
            return shared, start
        num_common = min(sequence.num_prompt_tokens, len(sequence.known) - 1)
        if num_common <= start:
            return shared, start
        num_full = num_common // self._size
        chain.serials = donor.chain.serials[:num_full]
        return donor.block_ids[: self.num_blocks(num_common)], num_common

    def _share(self, shared: tuple[int, ...], num_left: int) -> bool:
        """One owner more for each block, if that leaves `num_left` free ones."""
        if not shared or self._prefix is None:
            return True
        pool = self._prefix.pool
        pool.share(shared)
        if pool.num_free >= num_left:
            return True
        pool.free(shared)
        return False


def _scope(request: Request) -> str:
    """Whose prefixes a request may find: those of its own tenant and salt, for how long another's
    first token took would tell what was asked before; and of its adapter, whose keys and values are
    others."""
    tenant, adapter = request.tenant, request.adapter
    return f"{len(tenant)}:{tenant}{len(adapter)}:{adapter}{request.cache_salt}"
