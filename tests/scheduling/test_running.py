"""Blocks as they are needed, and who gives them up."""

from __future__ import annotations

import pytest

from firsthand.request import Priority
from firsthand.scheduling.policy import Policy
from tests.scheduling.bench import Bench

EAGER = Policy(growth_tokens=0, max_recomputed=1.0)  # admits whatever fits now


def test_a_sequence_gets_a_block_when_its_next_token_needs_one() -> None:
    bench = Bench(size=4)
    bench.add("a", prompt=3, new=6)
    held = []
    while bench.machine.num_waiting + bench.machine.num_running:
        bench.step()
        held.append(len(bench.plans[-1].slices[0].block_ids))
    assert held == [1, 1, 2, 2, 2, 2]


def test_sched_2_everybody_is_evicted_and_nobody_notices() -> None:
    bench = Bench(sequences=6, blocks=8, size=2, context=16, policy=EAGER)
    for name in "abcdef":
        bench.add(name, prompt=2, new=12)
    bench.finish()
    assert bench.num_preempted >= 5
    assert all(len(tokens) == 12 for tokens in bench.ledger.tokens.values())


def test_the_lowest_class_goes_first_and_in_it_the_youngest() -> None:
    bench = Bench(sequences=4, blocks=4, size=2, policy=EAGER)
    bench.add("old", prompt=1, new=7, priority=Priority.BACKGROUND)
    bench.add("young", prompt=1, new=7, priority=Priority.BACKGROUND)
    bench.step()
    bench.add("normal", prompt=1, new=7)
    bench.add("urgent", prompt=1, new=7, priority=Priority.URGENT)
    left = []
    while bench.machine.num_waiting + bench.machine.num_running:
        before = set(bench.step())
        left.append(before)
        if bench.num_preempted:
            break
    assert "young" not in left[-1]
    assert "old" in left[-1]
    bench.finish()


def test_the_one_that_asks_is_evicted_itself_when_nobody_is_lower() -> None:
    bench = Bench(sequences=2, blocks=3, size=2, policy=EAGER)
    bench.add("first", prompt=3, new=3)
    bench.add("second", prompt=2, new=4)
    assert bench.step() == ["first", "second"]
    assert bench.step() == ["first"]  # the second needed a block
    assert bench.machine.num_waiting == 1
    bench.finish()


def test_a_step_that_evicts_admits_nobody() -> None:
    bench = Bench(sequences=4, blocks=4, size=2, policy=EAGER)
    bench.add("first", prompt=3, new=5)
    bench.add("second", prompt=4, new=4)
    bench.step()
    bench.add("urgent", prompt=1, new=1, priority=Priority.URGENT)
    assert bench.step() == ["first"]
    (gone,) = bench.machine.last_plan.preempted
    assert (gone.request_id, gone.num_blocks, gone.num_computed_tokens) == ("second", 2, 4)
    assert bench.step()[-1] == "urgent"
    assert [(one.request_id, one.num_blocks) for one in bench.machine.last_plan.admitted] == [
        ("urgent", 1)
    ]
    bench.finish()


def test_an_evicted_sequence_keeps_its_tokens_and_computes_them_again() -> None:
    bench = Bench(sequences=2, blocks=3, size=2, policy=EAGER)
    bench.add("first", prompt=3, new=3)
    bench.add("second", prompt=2, new=4)
    bench.step()
    drawn = list(bench.ledger.tokens["second", 0])
    assert len(drawn) == 1
    while True:
        if "second" in bench.step():
            break
        assert bench.ledger.tokens["second", 0] == drawn
    piece = bench.plans[-1].slices[-1]
    assert (piece.start, piece.token_ids[2:]) == (0, tuple(drawn))
    assert bench.num_recomputed == 2  # the prompt; the drawn token had not been computed
    bench.finish()


def test_sched_4_an_evicted_sequence_returns_before_new_ones_of_its_class() -> None:
    """Also before those that came earlier, and smaller ones that would fit already."""
    bench = Bench(sequences=3, blocks=4, size=2, policy=EAGER)
    bench.add("first", prompt=3, new=5)
    bench.add("evicted", prompt=4, new=4)
    bench.add("earlier", prompt=2, new=2)
    assert bench.step() == ["first", "evicted"]
    assert bench.step() == ["first"]
    assert bench.num_preempted == 1
    bench.add("later", prompt=1, new=2)
    assert bench.step() == ["first"]  # a block is free, and kept
    assert bench.pool.num_free == 1
    seen: list[str] = []
    while bench.machine.num_waiting + bench.machine.num_running:
        seen += [name for name in bench.step() if name not in seen]
    assert seen.index("evicted") < seen.index("earlier") < seen.index("later")


def test_sched_3_evictions_per_sequence_are_bounded() -> None:
    """I8: after three a sequence returns with its whole length and is left alone."""
    bench = Bench(sequences=8, blocks=12, size=1, context=12, policy=EAGER)
    for number in range(12):
        bench.add(f"r{number}", prompt=1, new=11, priority=list(Priority)[number % 3])
    admitted: dict[str, int] = {}
    while bench.machine.num_waiting + bench.machine.num_running:
        bench.step()
        for one in bench.machine.last_plan.admitted:
            assert one.resumed == (one.request_id in admitted)
            admitted[one.request_id] = admitted.get(one.request_id, 0) + 1
    assert max(admitted.values()) == 1 + Policy().max_preemptions
    bench.ledger.check(bench.context)


def test_without_evictions_everybody_has_its_whole_length_at_once() -> None:
    bench = Bench(sequences=4, blocks=8, size=2, policy=Policy(max_preemptions=0))
    for name in "abcd":
        bench.add(name, prompt=2, new=7)
    bench.step()
    assert (bench.machine.num_running, bench.machine.num_used_blocks) == (2, 8)
    bench.finish()
    assert bench.num_preempted == 0


def test_room_is_kept_for_the_growth_of_all() -> None:
    bench = Bench(sequences=4, blocks=8, size=2, policy=Policy(growth_tokens=4))
    for name in "abcd":
        bench.add(name, prompt=2, new=12)
    bench.step()
    assert bench.machine.num_running == 2  # of 2 tokens each, and 4 to come: 3 blocks


def test_sched_3_when_evictions_have_cost_much_only_whole_lengths_are_admitted() -> None:
    """A long prompt among several that generate, with the pool nearly full."""
    bench = Bench(sequences=8, blocks=60, size=4, context=240, budget=64)
    bench.add("long", prompt=120, new=100)
    for number in range(20):
        bench.add(f"r{number}", prompt=10, new=60)
    bench.finish()
    assert bench.num_recomputed < 0.25 * (bench.model.num_computed - bench.num_recomputed)


def test_sched_6_running_sequences_have_a_token_in_every_step() -> None:
    bench = Bench(sequences=5, budget=16, context=200, blocks=200)
    for number in range(4):
        bench.add(f"r{number}", prompt=2, new=40)
    bench.step()
    bench.add("long", prompt=100, new=2)
    for _ in range(8):
        assert bench.step() == ["r0", "r1", "r2", "r3", "long"]
        assert bench.plans[-1].num_tokens == 16
    bench.finish()


@pytest.mark.parametrize("size", [1, 3, 4, 16])
def test_a_sequence_that_fits_alone_always_ends(size: int) -> None:
    context = 33
    blocks = -(-(context - 1) // size)
    bench = Bench(sequences=6, blocks=blocks, size=size, context=context, policy=EAGER)
    for number in range(9):
        bench.add(f"r{number}", prompt=1 + number * 3, new=40)
    bench.finish()
