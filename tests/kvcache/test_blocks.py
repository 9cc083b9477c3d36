"""The free list: nothing lost, nothing given twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_freeing_a_block_that_is_not_in_use_raises() -> None:
    pool = BlockPool(num_blocks=2, block_size=4)
    taken = pool.allocate(1)
    assert taken is not None
    pool.free(taken)
    with pytest.raises(ValueError, match="block 0 is not in use"):
        pool.free(taken)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert BlockPool(num_blocks=1, block_size=4).blocks_for(tokens) == blocks


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=60))
def test_free_and_used_are_always_the_total(total: int, moves: list[tuple[bool, int]]) -> None:
    pool = BlockPool(total, block_size=1)
    held: list[tuple[int, ...]] = []
    for take, number in moves:
        if take:
            blocks = pool.allocate(number)
            if blocks is not None:
                held.append(blocks)
        elif held:
            pool.free(held.pop(number % len(held)))
        owned = [block for blocks in held for block in blocks]
        assert len(set(owned)) == len(owned) == pool.num_used
        assert pool.num_free + pool.num_used == total
