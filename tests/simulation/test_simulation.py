"""A million steps of the real scheduler, and the tools that make a failure small.

SCHED-1 … SCHED-7, KV-1, KV-3 … KV-6 happen in it at random; `tests/scheduling` has them one by one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.runs import Failure, failure_of, run_parallel, run_seeds, told
from tests.simulation.shrink import Shrinker
from tests.simulation.workload import Workload, random_workload
from tests.simulation.world import World

NUM_STEPS = 1_000_000

HAPPENS = (
    "admitted",
    "hits",
    "copies",
    "preempted",
    "moved",
    "overdue",
    "shares measured",
    "refused",
    "twins",
    "faults",
    "computed again",
    "aborted during a step",
    "length",
    "context",
    "end_token",
    "stop_id",
    "repetition",
    "error",
    "abort following",  # a deadline ends the leader first, and so finds no followers
    *(
        f"{what} {where}"
        for what in ("abort", "deadline")
        for where in ("waiting", "evicted", "reading its prompt", "writing")
    ),
)
"""What a million steps must have seen: every end, every state to be aborted in, every fault."""


def test_r_1_some_steps_of_everything() -> None:
    report = run_seeds(0, 1, 15_000)
    assert report.failure is None, told(report.failure, max_tries=300)


@pytest.mark.slow
def test_r_1_r_2_a_million_steps() -> None:
    """I1 to I10, on two processes."""
    report = run_parallel(0, NUM_STEPS, 2)
    assert report.failure is None, told(report.failure)
    assert report.num_steps >= NUM_STEPS
    assert [what for what in HAPPENS if not report.seen[what]] == []


def trace(seed: int) -> str:
    world = World(random_workload(seed), trace=True)
    world.play()
    return world.trace


def test_i11_a_seed_gives_the_same_plans_and_events_in_every_process() -> None:
    """Also where sets and dictionaries are ordered by another hash."""
    seeds = (0, 2, 7, 9)
    code = (
        "from tests.simulation.test_simulation import trace\n"
        f"print(*[trace(seed) for seed in {seeds}])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.split() == [trace(seed) for seed in seeds]
    assert len(set(there.stdout.split())) == len(seeds)


def test_a_workload_shrinks_to_the_requests_that_matter() -> None:
    """Two of many, and small numbers in them."""

    def fails(workload: Workload) -> bool:
        marks = {ask.mark for ask in workload.asks if ask.num_own >= 1}
        return {3, 5} <= marks

    small = Shrinker(fails).shrink(random_workload(2))
    assert [ask.mark for ask in small.asks] == [3, 5]
    assert all(ask.num_own == 1 and ask.num_new == 1 and ask.n == 1 for ask in small.asks)


def test_a_failure_tells_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest workload that was found still fails in the same way."""
    from tests.simulation.sabotage import SABOTAGES

    next(one for one in SABOTAGES if one.name == "an event comes twice").apply(monkeypatch)
    report = run_seeds(0, 1, 1000)
    assert report.failure == Failure(0, "I3", report.failure.what if report.failure else "")
    text = told(report.failure, max_tries=200)
    assert "make simulate SEED=0 STEPS=1" in text
    assert "\n1 of " in text
    assert failure_of(random_workload(0)) is not None
