"""The arena against a model that paints every range in its own colour, alone and under threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.memory.arena import Arena, Range
from firsthand.memory.reservation import ALIGNMENT, Reservation

GRANULE = 4


def silent_arena(num_units: int, granule: int = 1) -> Arena:
    return Arena(num_units, granule=granule, move=lambda *_: None, clock=lambda: 0.0)


def checked(arena: Arena) -> None:
    """Ranges and holes cover the arena: nothing overlaps, nothing is lost, no two holes touch."""
    held, facts = arena.held(), arena.facts()
    edges = [Range(0, 0), *held.values(), Range(facts.num_units, 0)]
    gaps = [after.start - before.end for before, after in pairwise(edges)]
    assert all(gap >= 0 for gap in gaps)
    assert sum(gaps) == facts.num_free
    assert max(gaps) == facts.largest_free
    assert facts.num_used == sum(piece.length for piece in held.values()) <= facts.most_used
    assert facts.num_ranges == len(held)
    assert 0 <= facts.fragmentation < 1


def test_first_fit_splits_and_a_freed_range_merges_with_both_neighbours() -> None:
    arena = silent_arena(32)
    a, b, c, d = (arena.allocate(8) for _ in range(4))
    assert None not in (a, b, c, d)
    assert (a, b, c, d) == (0, 1, 2, 3)
    arena.free(1)
    arena.free(3)
    assert arena.facts().largest_free == 8
    e = arena.allocate(3)  # the first hole, not the last one
    assert e is not None
    assert arena.start(e) == 8
    arena.free(e)
    assert arena.facts().largest_free == 8  # split and whole again
    arena.free(2)
    assert arena.facts().largest_free == 24  # with the hole on either side
    assert arena.facts().num_compactions == 0
    checked(arena)


def test_a_range_starts_at_a_multiple_of_the_granule() -> None:
    arena = silent_arena(64, granule=16)
    ids = [arena.allocate(1), arena.allocate(17)]
    assert [*arena.held().values()] == [Range(0, 16), Range(16, 32)]
    assert arena.length(1) == 32
    assert ids == [0, 1]


def test_s37_it_compacts_only_when_no_hole_is_long_enough_though_enough_is_free() -> None:
    moves = []
    ticks = count()
    arena = Arena(
        40, granule=4, move=lambda *move: moves.append(move), clock=lambda: next(ticks) * 0.5
    )
    for _ in range(5):
        arena.allocate(8)
    arena.free(0)
    arena.free(2)
    assert arena.facts().fragmentation == 0.5
    assert arena.allocate(20) is None  # 16 are free: nothing is moved
    assert arena.allocate(8) == 5  # fits a hole
    assert moves == []
    assert next(ticks) == 0  # nor was the clock looked at
    arena.free(5)
    assert arena.allocate(12) == 6
    assert moves == [(8, 0, 8)]  # one move opens 16 units, so the others stay
    assert {key: piece.start for key, piece in arena.held().items()} == {1: 0, 6: 8, 3: 24, 4: 32}
    facts = arena.facts()
    assert (facts.num_compactions, facts.num_moved, facts.compaction_ms) == (1, 8, 500.0)
    checked(arena)


def test_a_pinned_range_stays_and_what_could_not_help_is_not_moved() -> None:
    moves = []
    arena = Arena(40, granule=4, move=lambda *move: moves.append(move), clock=lambda: 0.0)
    for _ in range(5):
        arena.allocate(8)
    arena.free(0)
    arena.free(3)
    with arena.pinned(2) as first, arena.pinned(2) as second:
        assert first == second == Range(16, 8)
        assert arena.allocate(16) is None
        with pytest.raises(ValueError, match="range 2 is pinned"):
            arena.free(2)
    assert moves == []
    with arena.pinned(1):
        assert arena.allocate(12) is None
        assert arena.facts().num_compactions == 0
    assert arena.allocate(16) is not None
    assert moves == [(8, 0, 8), (16, 8, 8)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda arena: arena.free(0), "range 0 is not held"),  # twice
        (lambda arena: arena.free(7), "range 7 is not held"),  # never
        (lambda arena: arena.start(0), "range 0 is not held"),
        (lambda arena: arena.allocate(0), "holds nothing"),
        (lambda arena: arena.allocate(-4), "holds nothing"),
    ],
)
def test_what_only_a_bug_would_ask_for_is_refused(
    call: Callable[[Arena], object], message: str
) -> None:
    arena = silent_arena(8)
    arena.allocate(8)
    arena.free(0)
    assert arena.allocate(8) == 1  # the place of range 0, under an id of its own
    with pytest.raises(ValueError, match=message):
        call(arena)
    checked(arena)


@pytest.mark.parametrize(("num_units", "granule"), [(0, 1), (-8, 4), (10, 4), (8, 0)])
def test_a_size_that_cannot_be_cut(num_units: int, granule: int) -> None:
    with pytest.raises(ValueError, match="cannot be cut"):
        silent_arena(num_units, granule)


def test_a_move_that_fails_loses_no_range() -> None:
    broken = True

    def move(source: int, target: int, length: int) -> None:
        if broken and source == 24:
            raise RuntimeError("no")

    arena = Arena(40, granule=8, move=move, clock=lambda: 0.0)
    for _ in range(5):
        arena.allocate(8)
    for freed in (0, 2, 4):
        arena.free(freed)
    with pytest.raises(RuntimeError, match="no"):
        arena.allocate(24)
    checked(arena)
    assert {key: piece.start for key, piece in arena.held().items()} == {1: 0, 3: 24}
    broken = False
    assert arena.allocate(24) is not None
    checked(arena)


class Painted:
    """An arena over a reservation; each range is filled with its own byte, and must keep it."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = Reservation(num_bytes)
        self.arena = Arena(num_bytes, granule=GRANULE, move=self.memory.move, clock=lambda: 0.0)
        self.colours: dict[int, int] = {}

    def allocate(self, length: int, colour: int) -> int | None:
        range_id = self.arena.allocate(length)
        if range_id is not None:
            self.colours[range_id] = colour
            with self.arena.pinned(range_id) as place:
                self.memory.view(*place)[:] = bytes([colour]) * place.length
        return range_id

    def check(self, range_id: int) -> None:
        with self.arena.pinned(range_id) as place:
            assert bytes(self.memory.view(*place)) == bytes([self.colours[range_id]]) * place.length


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_s36_any_calls_keep_every_byte_of_every_range(calls: list[tuple[bool, int]]) -> None:
    """Allocations and frees in any order: what is there is right, and None is only ever said when
    too little is free."""
    painted = Painted(128)
    held: list[int] = []
    for colour, (wants, number) in enumerate(calls):
        if wants or not held:
            free = painted.arena.facts().num_free
            range_id = painted.allocate(number, colour % 255 + 1)
            assert (range_id is None) == (painted.arena.rounded(number) > free)
            held += [] if range_id is None else [range_id]
        else:
            painted.arena.free(held.pop(number % len(held)))
        checked(painted.arena)
        for range_id in held:
            painted.check(range_id)
            assert painted.arena.start(range_id) % GRANULE == 0


def test_s36_threads_share_it() -> None:
    """Each thread paints its own ranges and finds them unharmed, while others force compactions."""
    painted = Painted(1024)
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        random, held = Random(seed), list[int]()
        try:
            for _ in range(400):
                if held and (random.random() < 0.45 or len(held) > 12):
                    range_id = held.pop(random.randrange(len(held)))
                    painted.check(range_id)
                    painted.arena.free(range_id)
                else:
                    added = painted.allocate(random.randint(1, 90), seed + 1)
                    held += [] if added is None else [added]
                for range_id in held:
                    painted.check(range_id)
            for range_id in held:
                painted.arena.free(range_id)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    facts = painted.arena.facts()
    assert facts.num_compactions > 0  # or the test saw nothing
    assert (facts.num_used, facts.largest_free) == (0, 1024)
    checked(painted.arena)


def test_without_pins_threads_would_be_seen_to_harm_each_other() -> None:
    """The control of the test above: a range that is written where it was, not where it is."""
    painted = Painted(64)
    ids = [painted.allocate(16, colour) for colour in (1, 2, 3, 4)]
    assert ids == [0, 1, 2, 3]
    stale = painted.arena.start(1)
    painted.arena.free(0)
    painted.arena.free(2)
    assert painted.allocate(32, 5) is not None  # compacts
    painted.memory.view(stale, 16)[:] = bytes([2]) * 16
    with pytest.raises(AssertionError):
        for range_id in (1, 3, 4):
            painted.check(range_id)


def test_the_reservation_is_aligned_and_zero_and_moves_what_overlaps() -> None:
    memory = Reservation(1 << 20)
    array = np.frombuffer(memory.view(0, memory.num_bytes), dtype=np.uint8)
    assert array.ctypes.data % ALIGNMENT == 0
    assert not array.any()
    memory.view(8, 4)[:] = b"abcd"
    memory.move(8, 6, 4)
    assert bytes(memory.view(6, 6)) == b"abcdcd"


def test_more_address_space_than_there_is_is_refused() -> None:
    with pytest.raises(MemoryError, match="bytes of address space"):
        Reservation(1 << 62)
