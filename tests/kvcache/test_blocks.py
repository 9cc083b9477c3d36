"""The pool: nothing lost, nothing given twice, reused in the stated order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from firsthand.kvcache.blocks import BlockPool


def test_a_freed_block_is_the_next_one_given() -> None:
    pool = BlockPool(num_blocks=3, block_size=4)
    assert pool.allocate(2) == (0, 1)
    pool.free((0,))
    assert pool.allocate(1) == (0,)


def test_too_many_at_once_changes_nothing() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    assert pool.allocate(3) is None
    assert (pool.num_free, pool.num_used) == (2, 0)


@pytest.mark.parametrize("block_id", [0, 1, 2, -1, 99])
def test_freeing_a_block_that_is_not_in_use_raises(block_id: int) -> None:
    pool = BlockPool(num_blocks=3, block_size=4)
    pool.free(pool.allocate(1) or ())
    with pytest.raises(ValueError, match=f"block {block_id} is not in use"):
        pool.free((block_id,))


def test_a_pool_that_holds_nothing_is_refused() -> None:
    for num_blocks, block_size in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="holds nothing"):
            BlockPool(num_blocks, block_size)


def test_a_shared_block_is_free_when_its_last_owner_has_freed_it() -> None:
    pool = BlockPool(num_blocks=1, block_size=4)
    taken = pool.allocate(1) or ()
    pool.share(taken)
    pool.free(taken)
    assert (pool.num_owners(0), pool.num_free) == (1, 0)
    pool.free(taken)
    assert (pool.num_owners(0), pool.num_free) == (0, 1)


def test_a_free_block_cannot_be_shared() -> None:
    pool = BlockPool(num_blocks=1, block_size=4)
    with pytest.raises(ValueError, match="nothing to share"):
        pool.share((0,))


def test_a_published_block_is_found_until_its_memory_is_needed() -> None:
    pool = BlockPool(num_blocks=3, block_size=4)
    taken = pool.allocate(2) or ()
    assert pool.publish(taken[0], "key")
    pool.free(taken)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (3, 1, 0)
    assert pool.allocate(2) == (1, 2)  # what nobody knows is given out first
    assert pool.lookup("key") == 0
    assert pool.allocate(1) == (0,)
    assert (pool.lookup("key"), pool.num_evictions) == (None, 1)


def test_a_cached_block_that_is_shared_is_in_use_again() -> None:
    pool = BlockPool(num_blocks=1, block_size=4)
    taken = pool.allocate(1) or ()
    pool.publish(0, "key")
    pool.free(taken)
    pool.share((0,))
    assert (pool.num_cached, pool.num_used, pool.allocate(1)) == (0, 1, None)


def test_the_tail_of_a_sequence_is_evicted_before_its_head_and_the_oldest_first() -> None:
    pool = BlockPool(num_blocks=5, block_size=4)
    first, second = pool.allocate(3) or (), pool.allocate(2) or ()
    for block_id in (*first, *second):
        pool.publish(block_id, block_id)
    pool.free(first)
    pool.free(second)
    assert pool.allocate(5) == (2, 1, 0, 4, 3)


def test_a_key_belongs_to_one_block() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    pool.allocate(2)
    assert pool.publish(0, "key")
    assert not pool.publish(1, "key")
    assert not pool.is_published(1)
    with pytest.raises(ValueError, match="published already"):
        pool.publish(0, "other")


def test_only_a_block_in_use_can_be_published() -> None:
    with pytest.raises(ValueError, match="not in use"):
        BlockPool(num_blocks=1, block_size=4).publish(0, "key")


def test_kv_6_an_unpublished_block_is_never_found_again() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    taken = pool.allocate(2) or ()
    pool.publish(0, "used")
    pool.publish(1, "cached")
    pool.free(taken[1:])
    pool.unpublish((0, 1))
    assert (pool.lookup("used"), pool.lookup("cached")) == (None, None)
    assert (pool.num_cached, pool.num_free, pool.num_used) == (0, 1, 1)
    pool.check()


class PoolMachine(RuleBasedStateMachine):
    """S31, I1, I2: whatever is asked in whatever order, blocks in = blocks out."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(num_blocks=7, block_size=2)
        self.owned: list[tuple[int, ...]] = []

    @rule(target=held, count=st.integers(0, 8))
    def allocate(self, count: int) -> tuple[int, ...]:
        before = self.pool.num_free
        taken = self.pool.allocate(count)
        assert (taken is None) == (count > before)
        self.owned.append(taken or ())
        return taken or ()

    @rule(target=held, blocks=held)
    def share(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        self.pool.share(blocks)
        self.owned.append(blocks)
        return blocks

    @rule(blocks=consumes(held))
    def free(self, blocks: tuple[int, ...]) -> None:
        self.pool.free(blocks)
        self.owned.remove(blocks)

    @rule(blocks=held, key=st.integers(0, 5))
    def publish(self, blocks: tuple[int, ...], key: int) -> None:
        if blocks and not self.pool.is_published(blocks[-1]):
            known = self.pool.lookup(key) is not None
            assert self.pool.publish(blocks[-1], key) != known

    @rule(target=held, key=st.integers(0, 5))
    def find(self, key: int) -> tuple[int, ...]:
        block_id = self.pool.lookup(key)
        found = () if block_id is None else (block_id,)
        self.pool.share(found)
        self.owned.append(found)
        return found

    @rule(block_id=st.integers(0, 6))
    def unpublish(self, block_id: int) -> None:
        self.pool.unpublish((block_id,))

    @invariant()
    def everything_is_somewhere(self) -> None:
        self.pool.check()
        owned = [block_id for blocks in self.owned for block_id in blocks]
        assert self.pool.num_used == len(set(owned))
        assert self.pool.num_used + self.pool.num_free == 7
        for block_id in range(7):
            assert self.pool.num_owners(block_id) == owned.count(block_id)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
