"""The order inside a class: tenants, and the static baseline."""

from __future__ import annotations

import time

import pytest

from firsthand.request import Priority
from firsthand.scheduling.policy import Policy
from firsthand.scheduling.waiting import MAX_ABSENT_TENANTS
from tests.scheduling.bench import Bench

PATIENT = Policy(ageing_s=1e6)


def test_a_tenant_with_many_requests_does_not_hold_up_another() -> None:
    bench = Bench(sequences=1, policy=PATIENT)
    for number in range(10):
        bench.add(f"many{number}", tenant="many")
    bench.add("one", tenant="one")
    order: list[str] = []
    while bench.machine.num_waiting + bench.machine.num_running:
        order += [name for name in bench.step() if name not in order]
    assert order.index("one") == 1


def test_tenants_are_served_alike_whatever_their_lengths() -> None:
    bench = Bench(sequences=4, blocks=256, policy=PATIENT)
    for number in range(200):
        bench.add(f"long{number}", prompt=20, new=20, tenant="long")
        bench.add(f"short{number}", prompt=2, new=3, tenant="short")
        bench.add(f"third{number}", prompt=2, new=12, tenant="third")
    served = {"long": 0, "short": 0, "third": 0}
    for _ in range(300):
        names = bench.step()
        for name, piece in zip(names, bench.plans[-1].slices, strict=True):
            served[name.rstrip("0123456789")] += len(piece.token_ids)
    total = sum(served.values())
    for tokens in served.values():
        assert tokens / total == pytest.approx(1 / 3, abs=0.05)


def test_who_comes_new_has_saved_nothing_up() -> None:
    bench = Bench(sequences=1, policy=PATIENT)
    for number in range(30):
        bench.add(f"old{number}", tenant="old")
    for _ in range(40):
        bench.step()
    for number in range(10):
        bench.add(f"new{number}", tenant="new")
    order: list[str] = []
    for _ in range(24):
        order += [name for name in bench.step() if name not in order]
    assert 2 <= sum(name.startswith("old") for name in order) <= 4


def test_i9_absent_tenants_are_forgotten() -> None:
    bench = Bench(sequences=4)
    for number in range(MAX_ABSENT_TENANTS + 300):
        bench.add(f"r{number}", prompt=1, new=1, tenant=f"tenant{number}")
        bench.step()
    tenants = bench.machine._queue._classes[1].tenants  # type: ignore[attr-defined]
    assert len(tenants) <= MAX_ABSENT_TENANTS + 1


def test_s29_nobody_joins_a_static_batch_until_all_have_ended() -> None:
    bench = Bench(sequences=2, static=True)
    bench.add("a", new=5)
    bench.add("b", new=2)
    bench.add("c", new=1)
    steps = []
    while bench.machine.num_waiting + bench.machine.num_running:
        steps.append(bench.step())
    assert steps == [["a", "b"], ["a", "b"], ["a"], ["a"], ["a"], ["c"]]


def test_s41_a_static_batch_has_prompts_of_similar_length() -> None:
    bench = Bench(sequences=3, budget=256, static=True)
    for name, prompt in (("a", 10), ("b", 40), ("c", 11), ("d", 38), ("e", 8), ("f", 3)):
        bench.add(name, prompt=prompt, new=1)
    assert bench.step() == ["a", "c", "e"]
    assert bench.step() == ["b", "d", "f"]


def test_a_static_batch_ends_where_the_memory_does_and_reserves_whole_lengths() -> None:
    bench = Bench(sequences=4, blocks=8, size=4, static=True)
    for name in "abc":
        bench.add(name, prompt=4, new=9)
    assert bench.step() == ["a", "b"]
    assert bench.machine.num_used_blocks == 6
    bench.add("tiny", prompt=1, new=1)
    assert bench.step() == ["a", "b"]
    bench.finish()


def test_a_static_batch_whose_prompts_pass_the_budget_is_filled_over_steps() -> None:
    bench = Bench(sequences=3, budget=6, static=True)
    for name in "abc":
        bench.add(name, prompt=6, new=2)
    bench.add("d", prompt=6, new=2)
    seen: list[str] = []
    while len(seen) < 3:
        seen += [name for name in bench.step() if name not in seen]
    assert seen == ["a", "b", "c"]
    bench.finish()


def test_static_requests_can_be_aborted_and_their_classes_are_counted() -> None:
    bench = Bench(sequences=1, static=True)
    bench.add("a", priority=Priority.URGENT)
    bench.add("b")
    bench.step()
    assert bench.machine.waiting_by_class == (0, 1, 0)
    bench.abort("b")
    bench.abort("a")
    assert bench.machine.num_waiting + bench.machine.num_running == 0
    assert bench.machine.num_used_blocks == 0


def test_thousands_of_followers_return_in_one_commit_without_a_stall() -> None:
    """Sorting at each arrival made the cost of a commit the square of their number."""
    bench = Bench(budget=4096, sequences=32, blocks=4096)
    for number in range(32):
        bench.add(f"r{number}", prompt=2, new=2, n=128)
    plan = bench.machine.plan(0.0)
    result = bench.model.run(plan)
    began_s = time.thread_time()
    bench.take(bench.machine.commit(plan, result, 0.0))
    assert time.thread_time() - began_s < 1.0
    assert bench.machine.num_waiting == 32 * 127
