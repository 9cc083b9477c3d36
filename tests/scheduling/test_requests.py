"""A request as a whole: its sequences, its deadline, its end from any state."""

from __future__ import annotations

import pytest

from firsthand.errors import InvalidRequest
from firsthand.request import FinishReason, Priority, TokenEvent
from firsthand.scheduling.plan import Drawn, StepResult
from tests.scheduling.bench import Bench


def ends(events: list[TokenEvent]) -> list[tuple[int, FinishReason]]:
    return [(event.index, event.finish.reason) for event in events if event.finish]


@pytest.mark.parametrize("num_steps", range(6))
@pytest.mark.parametrize("shares", [True, False])
def test_an_abort_ends_all_sequences_from_any_state(shares: bool, num_steps: int) -> None:
    bench = Bench(sequences=2, budget=4, shares=shares)
    bench.add("a", prompt=6, new=9, n=4)
    for _ in range(num_steps):
        bench.step()
    events = bench.abort("a")
    assert ends(events) == [(index, FinishReason.CANCELLED) for index in range(4)]
    assert bench.abort("a") == []
    bench.machine.check_invariants()
    assert bench.machine.num_waiting + bench.machine.num_running == 0
    assert bench.machine.num_used_blocks == 0


def test_an_abort_tells_of_those_that_are_still_open() -> None:
    bench = Bench(sequences=1, shares=False)
    bench.add("a", prompt=2, new=2, n=3)
    bench.step()
    bench.step()
    assert ends(bench.abort("a")) == [(1, FinishReason.CANCELLED), (2, FinishReason.CANCELLED)]


def test_sched_7_an_id_is_free_again_when_all_its_sequences_have_ended() -> None:
    bench = Bench(sequences=1)
    bench.add("a", prompt=2, new=1, n=2)
    bench.step()
    with pytest.raises(InvalidRequest, match="already in progress"):
        bench.add("a")
    bench.step()
    bench.machine.add(bench.ledger.requests["a"], 0.0)


@pytest.mark.parametrize("shares", [True, False])
def test_followers_go_on_when_the_first_sequence_fails_in_the_prompt(shares: bool) -> None:
    bench = Bench(budget=4, shares=shares, sequences=1)
    bench.add("a", prompt=10, new=3, n=3)
    bench.step()
    plan = bench.machine.plan(1.0)
    failed = StepResult((Drawn(0, -1, error="the step failed"),), 0.0, 0.0)
    bench.take(bench.machine.commit(plan, failed, 1.0))
    assert bench.ledger.reasons == {("a", 0): FinishReason.ERROR}
    assert bench.machine.num_waiting == 2
    bench.finish()


def test_waiting_followers_are_counted_in_their_class() -> None:
    bench = Bench(shares=True, budget=4)
    bench.add("a", prompt=10, n=5, priority=Priority.URGENT)
    assert bench.machine.waiting_by_class == (5, 0, 0)
    bench.step()
    assert (bench.machine.waiting_by_class, bench.machine.running_by_class) == (
        (4, 0, 0),
        (1, 0, 0),
    )


def test_a_deadline_ends_what_runs_and_what_waits_in_the_next_plan() -> None:
    bench = Bench(sequences=2, shares=True)
    bench.add("runs", new=50, n=3, deadline_s=3.0)
    bench.add("goes on", new=50)
    bench.add("waits", new=50, deadline_s=3.0)
    for _ in range(3):
        bench.step()
    assert not bench.ledger.reasons
    assert bench.step() == ["goes on"]  # at 3.0
    late = FinishReason.DEADLINE
    assert bench.ledger.reasons == {
        ("runs", 0): late,
        ("runs", 1): late,
        ("runs", 2): late,
        ("waits", 0): late,
    }
    bench.finish()


def test_a_deadline_that_is_past_already_and_none_that_is_stale() -> None:
    bench = Bench()
    bench.now_s = 10.0
    bench.add("late", deadline_s=9.0)
    bench.add("done in time", new=1, deadline_s=11.0)
    bench.add("later", new=9, deadline_s=14.0)
    assert bench.step() == ["done in time", "later"]
    assert bench.ledger.reasons["late", 0] is FinishReason.DEADLINE
    assert bench.ledger.tokens["late", 0] == []
    for _ in range(4):
        bench.step()
    assert bench.ledger.reasons["done in time", 0] is FinishReason.LENGTH
    assert bench.ledger.reasons["later", 0] is FinishReason.DEADLINE


@pytest.mark.parametrize("took_s", [0.5, 1.0, 2.0])
def test_the_last_token_may_come_too_late(took_s: float) -> None:
    """A step began in time, and ends when `deadline_s` has come: what it brings is no answer."""
    bench = Bench()
    bench.add("last", new=1, deadline_s=1.0)
    plan = bench.machine.plan(0.0)
    (event,) = bench.machine.commit(plan, bench.model.run(plan), took_s)
    assert event.token_id is not None
    late = took_s >= 1.0
    assert ends([event]) == [(0, FinishReason.DEADLINE if late else FinishReason.LENGTH)]
    assert not bench.machine.num_running


def test_a_plan_that_only_ends_requests_is_empty_and_its_commit_tells_of_them() -> None:
    bench = Bench()
    bench.add("late", deadline_s=0.0)
    plan = bench.machine.plan(5.0)
    assert plan.slices == ()
    (event,) = bench.machine.commit(plan, StepResult((), 0.0, 0.0), 5.0)
    assert ends([event]) == [(0, FinishReason.DEADLINE)]
    assert event.at_s == 5.0


def test_kv_3_an_aborted_request_that_waited_never_took_a_block() -> None:
    bench = Bench(sequences=1)
    bench.add("runs", new=50)
    bench.step()
    used = bench.machine.num_used_blocks
    bench.add("waits")
    bench.abort("waits")
    assert bench.step() == ["runs"]
    assert bench.machine.num_used_blocks == used


def test_s_50_ten_thousand_requests_leave_nothing_behind() -> None:
    """Memory flat over many requests: every table is empty again."""
    bench = Bench(sequences=8, shares=True, blocks=32)
    bench.add("a", prompt=1, new=1)
    for number in range(10_000):
        if number:
            bench.machine.add(bench.ledger.requests["a"], 0.0)
        plan = bench.machine.plan(0.0)
        bench.machine.commit(plan, bench.model.run(plan), 0.0)
    machine = bench.machine
    assert len(machine._requests) == 0
    assert not machine._running.sequences
    assert machine.num_used_blocks == 0
    assert len(machine._prefix._entries) <= 32  # type: ignore[union-attr]
