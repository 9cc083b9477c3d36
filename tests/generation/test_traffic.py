"""The numbers of admission, told by hand."""

from __future__ import annotations

import pytest

from firsthand.engine.facts import StepFacts
from firsthand.generation.traffic import WINDOW_S, Traffic
from firsthand.request import Request, SamplingParams, StopRules
from firsthand.scheduling.facts import Admitted, PlanFacts


def request(name: str, num_prompt: int, max_tokens: int, n: int = 1) -> Request:
    return Request(name, (1,) * num_prompt, SamplingParams(), StopRules(max_tokens), seed=0, n=n)


def step(
    slices: dict[str, int], admitted: tuple[str, ...] = (), busy_ms: float = 100.0
) -> StepFacts:
    return StepFacts(
        started_s=0.0,
        request_ids=tuple(slices),
        slice_tokens=tuple(slices.values()),
        num_drawn=len(slices),
        num_finished=0,
        num_waiting=1,
        num_running=len(slices),
        num_used_blocks=7,
        plan_ms=0.0,
        run_ms=busy_ms,
        forward_ms=0.0,
        sample_ms=0.0,
        commit_ms=0.0,
        waiting_by_class=(0, 1, 0),
        running_by_class=(0, len(slices), 0),
        planned=PlanFacts(tuple(Admitted(name, 0, 0.0, 0) for name in admitted)),
    )


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_tokens_wait_until_they_begin_and_are_owed_until_they_are_computed() -> None:
    traffic = Traffic(Clock())
    a, b = request("a", 10, 5), request("b", 20, 5, n=2)
    traffic.submitted(a)
    traffic.submitted(b)
    load = traffic.load(100)
    assert (load.num_open, load.num_waiting_tokens, load.num_owed_tokens) == (2, 30, 15 + 50)
    traffic.stepped(step({"a": 10}, admitted=("a",)))
    load = traffic.load(100)
    assert (load.num_waiting_tokens, load.num_owed_tokens) == (20, 5 + 50)
    assert (load.num_waiting, load.num_running, load.num_used_blocks, load.num_blocks) == (
        1,
        1,
        7,
        100,
    )
    traffic.stepped(step({"a": 100}))  # again, after an eviction: no less than nothing is owed
    assert traffic.load(100).num_owed_tokens == 50
    traffic.ended(a)
    traffic.ended(a)
    traffic.ended(b)
    load = traffic.load(100)
    assert (load.num_open, load.num_waiting_tokens, load.num_owed_tokens) == (0, 0, 0)
    assert (load.total_submitted, load.total_ended, load.total_computed_tokens) == (2, 2, 110)
    assert load.num_running == load.num_used_blocks == 0


def test_rates_are_of_the_time_with_work_in_the_last_half_minute() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    assert traffic.load(1).ended_per_s == 0.0
    for second in range(3):
        clock.now_s = float(second)
        one = request(f"r{second}", 10, 5)
        traffic.submitted(one)
        traffic.stepped(step({one.request_id: 10}, (one.request_id,), busy_ms=200.0))
        traffic.ended(one)
    load = traffic.load(1)
    assert load.ended_per_s == pytest.approx(5.0)
    assert load.computed_tokens_per_s == pytest.approx(50.0)
    assert load.drawn_tokens_per_s == pytest.approx(5.0)
    clock.now_s = 1.5 + WINDOW_S
    assert traffic.load(1).ended_per_s == pytest.approx(5.0)
    clock.now_s = 3.0 + WINDOW_S
    assert traffic.load(1).ended_per_s == 0.0
    assert traffic.load(1).total_ended == 3
