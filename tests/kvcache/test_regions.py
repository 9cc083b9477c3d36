"""Regions: one per sequence, with headroom, whose content follows them when they move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.kvcache.arrays import KVLayout, KVType
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.kvcache.regions import RegionPool


class Slots:
    """A store of one number per slot, moved as the real one moves its layers."""

    def __init__(self, num_slots: int) -> None:
        self.values = np.full(num_slots, -1, dtype=np.int64)
        self.moves: list[tuple[int, int, int]] = []

    def move_slots(self, source: int, target: int, count: int) -> None:
        self.moves.append((source, target, count))
        self.values[target : target + count] = self.values[source : source + count].copy()


def pool_of(num_blocks: int, headroom: float = 1.0) -> tuple[RegionPool, Slots]:
    slots = Slots(num_blocks * 16)
    return RegionPool(num_blocks, 16, slots, clock=lambda: 0.0, headroom=headroom), slots


def test_one_id_is_a_whole_sequence() -> None:
    pool, _ = pool_of(10)
    assert not pool.grows
    first, second = pool.allocate(3), pool.allocate(4)
    assert first is not None
    assert second is not None
    assert (len(first), len(second)) == (1, 1)
    assert [pool.block_start(i) for i in (*first, *second)] == [0, 48]
    assert (pool.num_used, pool.num_free, pool.num_blocks, pool.block_size) == (7, 3, 10, 16)
    assert pool.allocate(4) is None
    pool.free(first)
    assert (pool.num_used, pool.num_free) == (4, 6)
    with pytest.raises(ValueError, match="not held"):
        pool.free(first)


@pytest.mark.parametrize(("count", "taken"), [(1, 2), (5, 6), (8, 10), (9, 10), (10, 10)])
def test_s25_the_headroom_is_room_and_gives_way_where_there_is_none(count: int, taken: int) -> None:
    pool, _ = pool_of(10, headroom=1.2)
    assert pool.allocate(count) is not None
    assert pool.num_used == taken


def test_more_than_there_is_never_fits() -> None:
    pool, _ = pool_of(4)
    assert pool.allocate(5) is None
    assert pool.num_used == 0


def test_s37_a_region_keeps_its_id_and_its_content_when_it_moves() -> None:
    pool, slots = pool_of(10)
    ids = [region for _ in range(4) for region in pool.allocate(2) or ()]
    for region in ids:
        start = pool.block_start(region)
        slots.values[start : start + 32] = region * 100 + np.arange(32)
    pool.free(ids[:1])
    pool.free(ids[2:3])
    assert pool.allocate(5) == (4,)
    assert [pool.block_start(region) for region in (1, 3)] == [0, 32]
    assert slots.values[:32].tolist() == [*range(100, 132)]
    assert slots.values[32:52].tolist() == [*range(300, 320)]
    assert slots.moves == [(32, 0, 32), (96, 32, 32)]
    facts = pool.facts()
    assert (facts.num_compactions, facts.num_moved, facts.fragmentation) == (1, 64, 0.0)


@pytest.mark.parametrize("kv_dtype", ["int16", "float16", "int8"])
@pytest.mark.parametrize("layout", ["tiles", "rows"])
def test_the_contiguous_store_moves_in_every_layer(kv_dtype: KVType, layout: KVLayout) -> None:
    """To the bit, the scales of codes with them, where source and target overlap."""
    places: dict[int, int] = {}
    store = ContiguousStore(
        *(2, 1, 4),
        num_slots=128,
        max_tokens=64,
        kv_dtype=kv_dtype,
        layout=layout,
    )
    store.follow(lambda block_id: places[block_id])
    pool = RegionPool(8, 16, store, clock=lambda: 0.0, headroom=1.0)
    ids = [region for count in (1, 5, 1) for region in pool.allocate(count) or ()]
    vectors = np.random.default_rng(0).normal(size=(2, 80, 1, 4)).astype(np.float32)
    before = []
    for layer in range(2):
        store.layer(layer).write(np.arange(16, 96), vectors[layer], -vectors[layer])
        before.append(store.layer(layer).read(np.arange(16, 96)))
    pool.free(ids[:1])
    assert pool.allocate(2) is not None
    places[ids[1]] = pool.block_start(ids[1])
    assert store.block_start(ids[1]) == 0
    for layer in range(2):
        after = store.layer(layer).read(np.arange(80))
        assert all(np.array_equal(a, b) for a, b in zip(before[layer], after, strict=True))


@pytest.mark.parametrize(("num_blocks", "headroom"), [(0, 1.0), (4, 0.9), (4, float("nan"))])
def test_a_pool_that_makes_no_sense(num_blocks: int, headroom: float) -> None:
    with pytest.raises(ValueError, match=r"holds nothing|is not in"):
        RegionPool(num_blocks, 16, Slots(64), clock=lambda: 0.0, headroom=headroom)


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from([1.0, 1.2, 2.0]),
    st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=50),
)
def test_any_calls_keep_every_token(headroom: float, calls: list[tuple[bool, int]]) -> None:
    """What was written to a region is read back from where it is now; None only without room."""
    pool, slots = pool_of(12, headroom)
    filled: dict[int, int] = {}
    for wants, number in calls:
        if wants or not filled:
            free, taken = pool.num_free, min(int(np.ceil(number * headroom)), 12)
            ids = pool.allocate(number)
            assert (ids is None) == (taken > free)
            for region in ids or ():
                start, filled[region] = pool.block_start(region), number * 16 - 3
                slots.values[start : start + filled[region]] = region
        else:
            region = [*filled][number % len(filled)]
            del filled[region]
            pool.free((region,))
        assert pool.num_free + pool.num_used == pool.num_blocks
        for region, count in filled.items():
            start = pool.block_start(region)
            assert (slots.values[start : start + count] == region).all()
