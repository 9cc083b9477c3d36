"""Which shards a plan is cut into, and which of them stay."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsthand.compute.native.shards import Shard, choose, cut
from firsthand.compute.plan import Op
from firsthand.errors import CapacityExceeded

MIB = 1 << 20


def plan_of(sizes: list[int], *, head: int = 0, tied: bool = False) -> tuple[list[Op], dict]:  # type: ignore[type-arg]
    """An embedding, a norm and a product per size, a head; each weight behind the other."""
    table = head or MIB
    ops = [Op("embed", (), (), ("table",))]
    places, at = {"table": (0, table)}, table
    for index, size in enumerate(sizes):
        name = f"w{index}"
        ops += [Op("norm", (), ()), Op("linear", (), (), (name,))]
        places[name] = (at, size)
        at += size
    if head:
        ops.append(Op("head", (), (), ("table" if tied else "head",)))
        places["head"] = places["table"] if tied else (at, head)
    return ops, places


def most_held(ops: list[Op], places: dict, swapped: tuple[Shard, ...]) -> int:  # type: ignore[type-arg]
    """By a walk over two steps, as `csrc/shards.cpp` does it: what is in memory at a time."""
    ring = [shard for shard in swapped if shard.ahead]
    gone = {place for shard in swapped for place in shard.behind}
    used = {places[name] for op in ops if op.name != "embed" for name in op.weights}
    there = {place for place in used if place not in gone}
    most = 0
    for _ in range(2):
        for index in range(len(ops)):
            for at, shard in enumerate(ring):
                if shard.first == index:
                    there |= {*shard.ahead, *shard.behind, *ring[(at + 1) % len(ring)].ahead}
            most = max(most, sum(size for _, size in there))
            for shard in swapped:
                if shard.last == index:
                    there -= set(shard.behind)
    return most


def test_every_product_is_in_one_shard_and_small_ones_share_it() -> None:
    ops, places = plan_of([MIB // 2, MIB // 2, 2 * MIB, MIB, MIB // 4], head=8 * MIB)
    found = cut(ops, places)
    assert [shard.num_bytes for shard in found] == [MIB, 2 * MIB, MIB + MIB // 4, 8 * MIB]
    covered = [i for shard in found for i in range(shard.first, shard.last + 1) if ops[i].weights]
    assert covered == [i for i, op in enumerate(ops) if op.weights and op.name != "embed"]


def test_all_stay_where_there_is_room() -> None:
    ops, places = plan_of([2 * MIB] * 4)
    for room in (None, 9 * MIB):
        choice = choose(ops, places, 512, room)
        assert (choice.swapped, choice.step_bytes, choice.num_swapped) == ((), 0, 0)


def test_two_lie_there_at_a_time_and_the_rest_stays() -> None:
    ops, places = plan_of([2 * MIB] * 10)
    choice = choose(ops, places, 1, 13 * MIB)
    assert choice.num_swapped == 6  # 4 stay, two of the others are there: 12 MiB
    assert choice.step_bytes == 12 * MIB
    firsts = [shard.first for shard in choice.swapped if shard.ahead]
    assert firsts == sorted(firsts)
    gaps = [b - a for a, b in pairwise(firsts)]
    assert max(gaps) - min(gaps) <= 2, "those that stay are spread over the plan"


def test_too_little_room_is_refused_with_its_numbers() -> None:
    ops, places = plan_of([4 * MIB] * 3)
    with pytest.raises(CapacityExceeded, match=r"room for 5\.0 MiB of weights.*8\.\d MiB"):
        choose(ops, places, 1, 5 * MIB)


def test_the_rows_of_an_embedding_are_given_back_unless_a_head_that_stays_has_them() -> None:
    ops, places = plan_of([2 * MIB] * 8, head=8 * MIB)
    choice = choose(ops, places, 1, 20 * MIB)
    assert choice.swapped[0] == Shard(0, 0, 0, (), (places["table"],))
    ops, places = plan_of([2 * MIB] * 8, head=8 * MIB, tied=True)
    choice = choose(ops, places, 1, 20 * MIB)
    away = {place for shard in choice.swapped for place in shard.behind}
    stays = places["head"] not in away
    assert stays == (choice.swapped[0].first != 0)


def test_s13_experts_are_read_as_they_are_chosen() -> None:
    ops, places = plan_of([2 * MIB] * 4)
    ops.insert(5, Op("experts", (), (), ("e0", "e1")))
    places |= {"e0": (100 * MIB, MIB), "e1": (101 * MIB, MIB)}
    choice = choose(ops, places, 1, 6 * MIB)
    ahead = {place for shard in choice.swapped for place in shard.ahead}
    behind = {place for shard in choice.swapped for place in shard.behind}
    assert (100 * MIB, MIB) not in ahead
    assert (100 * MIB, MIB) in behind


@given(
    st.lists(st.integers(1, 5 * MIB), min_size=1, max_size=30),
    st.integers(0, 6 * MIB),
    st.booleans(),
    st.integers(1, 60 * MIB),
)
def test_what_is_held_is_never_above_what_was_said(
    sizes: list[int], head: int, tied: bool, room: int
) -> None:
    ops, places = plan_of(sizes, head=head, tied=tied)
    try:
        choice = choose(ops, places, 1, room)
    except CapacityExceeded:
        return
    assert choice.held_bytes <= room
    assert most_held(ops, places, choice.swapped) <= choice.held_bytes
