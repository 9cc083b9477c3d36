"""The step: plan, run, commit, one fact, and a runner that may fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.errors import InvalidRequest
from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import PrefixCache
from firsthand.request import FinishReason, Priority, Request, SamplingParams, StopRules
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import Drawn, StepPlan, StepResult
from firsthand.scheduling.policy import Policy
from firsthand.scheduling.scheduler import Scheduler


class FakeRunner:
    """Draws the position as the token; from call `fail_from` on it raises, `num_faults` times."""

    def __init__(self, fail_from: int = 0, num_faults: int = 1) -> None:
        self.failing = range(fail_from, fail_from + num_faults) if fail_from else range(0)
        self.num_calls = 0

    def run(self, plan: StepPlan) -> StepResult:
        self.num_calls += 1
        if self.num_calls in self.failing:
            raise ValueError("a fault on purpose")
        drawn = tuple(
            Drawn(piece.sequence_id, piece.draw.position) for piece in plan.slices if piece.draw
        )
        return StepResult(drawn, forward_ms=3.0, sample_ms=1.0)


class Clock:
    """Each look is a millisecond later."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks / 1000


def engine(runner: FakeRunner, facts: list[StepFacts]) -> Engine:
    scheduler = Scheduler(Limits(100, 50, 3, 8), BlockPool(3, 50))
    return Engine(scheduler, runner, Clock(), facts.append)


def request(name: str, prompt: int = 2, new: int = 3) -> Request:
    return Request(name, (1,) * prompt, SamplingParams(), StopRules(new), 0)


def test_a_request_from_end_to_end() -> None:
    facts: list[StepFacts] = []
    machine = engine(FakeRunner(), facts)
    machine.add(request("a"))
    events = []
    while machine.has_work:
        events += machine.step()
    assert [event.token_id for event in events] == [2, 3, 4]
    assert [event.finish.reason for event in events if event.finish] == [FinishReason.LENGTH]
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    assert len(facts) == 3


def test_a_step_tells_what_it_did() -> None:
    facts: list[StepFacts] = []
    machine = engine(FakeRunner(), facts)
    machine.add(request("a", prompt=2, new=1))
    machine.add(request("b", prompt=9))
    machine.step()
    (fact,) = facts
    assert fact.request_ids == ("a", "b")
    assert fact.slice_tokens == (2, 6)
    assert (fact.num_tokens, fact.num_sequences) == (8, 2)
    assert (fact.num_drawn, fact.num_finished) == (1, 1)
    assert (fact.num_waiting, fact.num_running, fact.num_used_blocks) == (0, 1, 1)
    assert (fact.forward_ms, fact.sample_ms) == (3.0, 1.0)
    assert (fact.plan_ms, fact.run_ms, fact.commit_ms) == pytest.approx((1.0, 1.0, 1.0))
    assert fact.error is None


def test_s_45_a_step_that_fails_ends_its_requests_and_the_engine_lives() -> None:
    facts: list[StepFacts] = []
    machine = engine(FakeRunner(fail_from=2, num_faults=3), facts)
    machine.add(request("a"))
    machine.add(request("long", prompt=20))  # in the middle of its prompt when the fault comes
    machine.step()
    events = machine.step()
    assert [event.request_id for event in events] == ["a", "long"]
    for event in events:
        assert event.token_id is None
        assert event.finish is not None
        assert event.finish.reason is FinishReason.ERROR
        assert "ValueError: a fault on purpose" in str(event.finish.cause)
    assert facts[-1].error is not None
    assert (facts[-1].num_attempts, facts[-1].num_failed) == (2, 2)
    assert facts[-1].num_used_blocks == 0
    assert not machine.has_work
    machine.add(request("next", new=1))
    assert [event.token_id for event in machine.step()] == [2]


def test_s_45_a_step_that_fails_once_is_computed_again_and_nobody_sees_it() -> None:
    facts: list[StepFacts] = []
    machine = engine(FakeRunner(fail_from=1), facts)
    machine.add(request("a", new=1))
    machine.add(request("b", new=1))
    assert [event.token_id for event in machine.step()] == [2, 2]
    assert (facts[0].num_attempts, facts[0].num_failed, facts[0].num_drawn) == (2, 0, 2)
    assert "a fault on purpose" in str(facts[0].error)


def test_the_log_has_where_a_step_failed(caplog: pytest.LogCaptureFixture) -> None:
    machine = engine(FakeRunner(fail_from=1), [])
    machine.add(request("a"))
    machine.step()
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "a step of 1 sequences failed")
    assert "a fault on purpose" in caplog.text and "in run" in caplog.text


def test_those_who_wait_are_not_in_the_failed_step() -> None:
    machine = engine(FakeRunner(fail_from=1, num_faults=5), [])
    for name in "abcd":
        machine.add(request(name, prompt=1, new=1))
    assert [event.request_id for event in machine.step()] == ["a", "b", "c"]
    assert [(event.request_id, event.token_id) for event in machine.step()] == [("d", 1)]


def test_abort_and_check() -> None:
    machine = engine(FakeRunner(), [])
    machine.add(request("a"))
    (event,) = machine.abort("a")
    assert event.finish is not None
    assert event.finish.reason is FinishReason.CANCELLED
    assert machine.abort("a") == []
    assert not machine.has_work
    with pytest.raises(InvalidRequest):
        machine.check(request("b", prompt=50))


def shared_engine(runner: FakeRunner, facts: list[StepFacts]) -> Engine:
    pool = BlockPool(num_blocks=8, block_size=4)
    scheduler = Scheduler(Limits(100, 24, 3, 8), pool, prefix=PrefixCache(pool))
    return Engine(scheduler, runner, Clock(), facts.append)


def test_a_step_tells_what_the_plan_did() -> None:
    facts: list[StepFacts] = []
    machine = shared_engine(FakeRunner(), facts)
    machine.add(replace(request("a", prompt=6, new=3), n=2, priority=Priority.URGENT))
    machine.add(request("b", prompt=1, new=1))
    machine.step()
    (fact,) = facts
    assert (fact.waiting_by_class, fact.running_by_class) == ((1, 0, 0), (1, 0, 0))
    assert fact.planned.served_by_class == (6, 1, 0)
    assert [(one.request_id, one.index) for one in fact.planned.admitted] == [("a", 0), ("b", 0)]
    assert fact.planned.num_prefix_hit_tokens == 0
    machine.step()
    (admitted,) = facts[-1].planned.admitted
    assert (admitted.index, admitted.num_cached_tokens, admitted.resumed) == (1, 5, False)
    assert admitted.waited_s > 0
    assert (facts[-1].planned.num_copies, facts[-1].planned.num_preempted) == (1, 0)
    while machine.has_work:
        machine.step()
    assert (facts[-1].num_used_blocks, facts[-1].num_cached_blocks) == (0, 2)
    assert facts[-1].num_evicted_blocks == 0


def test_a_step_tells_of_evictions() -> None:
    facts: list[StepFacts] = []
    scheduler = Scheduler(Limits(100, 8, 2, 8), BlockPool(4, 2), policy=Policy(growth_tokens=0))
    machine = Engine(scheduler, FakeRunner(), Clock(), facts.append)
    for name in "ab":
        machine.add(request(name, prompt=2, new=6))
    while machine.has_work:
        machine.step()
    assert sum(fact.planned.num_preempted for fact in facts) == 1
    assert sum(fact.planned.num_recomputed for fact in facts) > 0
    assert [one.resumed for fact in facts for one in fact.planned.admitted] == [False, False, True]


def test_a_request_past_its_deadline_ends_in_the_next_step() -> None:
    machine = engine(FakeRunner(), [])
    machine.add(replace(request("late"), deadline_s=0.0))
    machine.add(request("in time"))
    late, drawn = machine.step()
    assert late.request_id == "late"
    assert late.finish is not None
    assert late.finish.reason is FinishReason.DEADLINE
    assert (drawn.request_id, drawn.token_id) == ("in time", 2)


def test_s_45_a_failed_step_ends_its_sequences_and_not_the_others_of_the_request() -> None:
    machine = shared_engine(FakeRunner(fail_from=1), [])
    machine.add(replace(request("a", prompt=3, new=2), n=3))
    assert [event.index for event in machine.step() if event.finish] == [0]
    events = []
    while machine.has_work:
        events += machine.step()
    assert sorted(event.index for event in events if event.finish) == [1, 2]
    assert [event.finish.reason for event in events if event.finish] == [FinishReason.LENGTH] * 2
