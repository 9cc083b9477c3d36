"""Who may pass whom, how long anybody can wait, and what a class is owed."""

from __future__ import annotations

import random

import pytest

from firsthand.request import Priority
from firsthand.scheduling.policy import Policy, longest_wait_s
from tests.scheduling.bench import Bench

URGENT, NORMAL, BACKGROUND = Priority
PATIENT = 1e6  # seconds: nobody is overdue


def first_steps(bench: Bench, max_steps: int = 3000) -> dict[str, int]:
    """Step to the end; in which step each request ran first."""
    seen: dict[str, int] = {}
    for number in range(max_steps):
        if not bench.machine.num_waiting + bench.machine.num_running:
            return seen
        for name in bench.step():
            seen.setdefault(name, number)
    raise AssertionError("it does not end")


def test_the_higher_class_is_admitted_first() -> None:
    bench = Bench(sequences=1)
    bench.add("background", priority=BACKGROUND)
    bench.add("normal")
    bench.add("urgent", priority=URGENT)
    seen = first_steps(bench)
    assert sorted(seen, key=lambda name: seen[name]) == ["urgent", "normal", "background"]


def test_a_request_that_does_not_fit_now_is_passed_by_smaller_ones() -> None:
    bench = Bench(sequences=8, blocks=8, size=4, policy=Policy(growth_tokens=0))
    bench.add("running", prompt=12, new=16)
    bench.step()
    bench.add("big", prompt=24, new=2)
    bench.add("small", prompt=2, new=2)
    assert bench.step() == ["running", "small"]
    seen = first_steps(bench)
    assert "big" in seen


def test_room_is_kept_after_a_number_of_passes() -> None:
    policy = Policy(growth_tokens=0, max_passed=3, ageing_s=PATIENT)
    bench = Bench(sequences=8, blocks=8, size=4, policy=policy)
    bench.add("running", prompt=12, new=20)
    bench.step()
    bench.add("big", prompt=24, new=2)
    passed = []
    for number in range(12):
        bench.add(f"small{number}", prompt=1, new=1)
        passed += [name for name in bench.step() if name.startswith("small")]
    assert passed == ["small0", "small1", "small2"]
    bench.add("urgent", prompt=1, new=1, priority=URGENT)
    assert bench.step() == ["running", "urgent"]  # a higher class is not held up
    seen = first_steps(bench)
    assert seen["big"] <= min(step for name, step in seen.items() if name.startswith("small"))


@pytest.mark.parametrize("priority", list(Priority))
def test_sched_5_s33_nobody_waits_longer_than_the_stated_bound(priority: Priority) -> None:
    """I6: an urgent flow that is more than can be served, and one request of each class.

    Overdue after `longest_wait_s`; from then on it starts when what ran then has ended.
    """
    policy = Policy(ageing_s=20.0, shares=(1000, 1, 1))
    bench = Bench(sequences=2, blocks=8, size=4, policy=policy)
    for number in range(6):
        bench.add(f"flow{number}", prompt=2, new=8, priority=URGENT)
    bench.add("one", prompt=20, new=2, priority=priority)
    class_index = list(Priority).index(priority)
    started = None
    for number in range(200):
        bench.add(f"more{number}", prompt=2, new=8, priority=URGENT)
        if "one" in bench.step():
            started = number
            break
    assert started is not None
    assert started <= longest_wait_s(class_index, 20.0) + 8


def test_s33_an_overdue_request_that_does_not_fit_is_passed_by_nobody() -> None:
    bench = Bench(sequences=4, blocks=8, size=4, policy=Policy(ageing_s=2.0, growth_tokens=0))
    bench.add("running", prompt=12, new=20, priority=URGENT)
    bench.step()
    bench.add("big", prompt=24, new=2, priority=URGENT)
    bench.step()
    bench.now_s += 2.0
    bench.add("small", prompt=1, new=1, priority=URGENT)
    seen = first_steps(bench)
    assert seen["big"] <= seen["small"]


def test_s33_a_prompt_being_read_keeps_no_overdue_request_of_its_class_from_its_turn() -> None:
    """Found by the simulation: a lower class that was owed was admitted past it."""
    policy = Policy(ageing_s=2.0, shares=(1, 1, 1))
    bench = Bench(sequences=3, budget=3, blocks=64, size=4, policy=policy)
    bench.add("long", prompt=40, new=1, priority=URGENT)
    bench.step()
    bench.add("one", prompt=2, new=1, priority=URGENT)
    bench.now_s += 2.0
    bench.add("low", prompt=2, new=1, priority=Priority.BACKGROUND)
    seen = first_steps(bench)
    assert seen["one"] <= seen["low"]


def test_s34_a_flood_of_urgent_requests_leaves_the_others_their_share() -> None:
    policy = Policy(ageing_s=PATIENT, shares=(4, 2, 2))
    bench = Bench(sequences=8, blocks=256, budget=32, policy=policy)
    for number in range(220):
        for priority in Priority:
            bench.add(f"{priority}{number}", prompt=4, new=6, priority=priority)
    for _ in range(300):
        bench.step()
    assert min(bench.machine.waiting_by_class) > 0  # all of them wanted more, all the time
    shares = [tokens / sum(bench.served) for tokens in bench.served]
    assert shares == pytest.approx([0.5, 0.25, 0.25], abs=0.02)


def test_s34_what_a_class_does_not_use_is_lent_and_taken_back() -> None:
    policy = Policy(ageing_s=PATIENT, shares=(6, 1, 2))
    bench = Bench(sequences=8, blocks=256, context=256, policy=policy)
    for number in range(8):
        bench.add(f"background{number}", prompt=4, new=200, priority=BACKGROUND)
    bench.step()
    assert bench.machine.running_by_class == (0, 0, 8)
    for number in range(40):
        bench.add(f"urgent{number}", prompt=4, new=200, priority=URGENT)
    for _ in range(12):
        bench.step()
    assert bench.machine.running_by_class == (6, 0, 2)
    bench.finish(4000)


def test_one_long_prompt_of_a_low_class_does_not_take_the_whole_budget() -> None:
    bench = Bench(budget=16, context=400, blocks=200, policy=Policy(ageing_s=PATIENT))
    bench.add("long", prompt=300, new=2, priority=BACKGROUND)
    bench.step()
    bench.add("urgent", prompt=20, new=2, priority=URGENT)
    for _ in range(3):
        bench.step()
    assert len(bench.ledger.tokens["urgent", 0]) >= 1
    bench.finish()


def test_r_13_r_14_there_is_never_room_while_nobody_runs() -> None:
    """Whatever waits, something runs in each step, so nothing waits for a room that is there."""
    rng = random.Random(1)
    bench = Bench(sequences=3, blocks=9, size=3, context=27, policy=Policy(ageing_s=5.0))
    for number in range(120):
        for _ in range(rng.randint(0, 2)):
            name = f"r{len(bench.ledger.requests)}"
            priority = rng.choice(list(Priority))
            bench.add(name, rng.randint(1, 20), rng.randint(1, 9), priority=priority)
        waiting = bench.machine.num_waiting
        assert bench.step() or not waiting, f"step {number} did nothing"
    bench.finish()
