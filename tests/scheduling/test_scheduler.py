"""The scheduler against hand-written results."""

from __future__ import annotations

import pytest

from firsthand.errors import InvalidRequest
from firsthand.kvcache.blocks import BlockPool
from firsthand.request import Finish, FinishReason, Request, SamplingParams, StopRules, TokenEvent
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import Draw, Drawn, SequenceSlice, StepPlan, StepResult
from firsthand.scheduling.scheduler import Scheduler


def scheduler(
    *, budget: int = 8, sequences: int = 2, context: int = 32, blocks: int = 2, size: int = 32
) -> Scheduler:
    return Scheduler(Limits(100, context, sequences, budget), BlockPool(blocks, size))


def request(name: str, prompt: int = 3, new: int = 4, *, penalty: float = 1.0) -> Request:
    sampling = SamplingParams(repetition_penalty=penalty)
    return Request(name, tuple(range(prompt)), sampling, StopRules(new), seed=7)


def answer(plan: StepPlan, token_id: int = 50) -> StepResult:
    drawn = tuple(
        Drawn(piece.sequence_id, token_id) for piece in plan.slices if piece.draw is not None
    )
    return StepResult(drawn, forward_ms=0.0, sample_ms=0.0)


def step(machine: Scheduler, token_id: int = 50) -> list[TokenEvent]:
    plan = machine.plan(0.0)
    return machine.commit(plan, answer(plan, token_id), 0.0)


def shape(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    return [
        (piece.sequence_id, piece.start, len(piece.token_ids), piece.draw is not None)
        for piece in plan.slices
    ]


def test_one_request_step_by_step() -> None:
    machine = scheduler()
    machine.add(request("a", prompt=3, new=2), 0.0)
    plan = machine.plan(0.0)
    draw = Draw(SamplingParams(), seed=7, position=3)
    assert plan.slices == (SequenceSlice(0, (0, 1, 2), 0, (0,), draw),)
    assert machine.commit(plan, answer(plan), 2.0) == [TokenEvent("a", 50, 2.0)]
    plan = machine.plan(0.0)
    draw = Draw(SamplingParams(), seed=7, position=4)
    assert plan.slices == (SequenceSlice(0, (50,), 3, (0,), draw),)
    end = Finish(FinishReason.LENGTH, 2)
    assert machine.commit(plan, answer(plan, 51), 4.0) == [TokenEvent("a", 51, 4.0, finish=end)]
    assert machine.plan(0.0).slices == ()
    assert (machine.num_waiting, machine.num_running, machine.num_used_blocks) == (0, 0, 0)


def test_a_long_prompt_is_cut_to_the_budget_and_draws_at_its_end_only() -> None:
    machine = scheduler(budget=4)
    machine.add(request("a", prompt=10), 0.0)
    seen = []
    for _ in range(4):
        plan = machine.plan(0.0)
        seen += shape(plan)
        machine.commit(plan, answer(plan), 0.0)
    assert seen == [(0, 0, 4, False), (0, 4, 4, False), (0, 8, 2, True), (0, 10, 1, True)]


def test_sched_6_a_long_prompt_does_not_stop_a_running_sequence() -> None:
    machine = scheduler(budget=4)
    machine.add(request("a", prompt=2, new=20), 0.0)
    step(machine)
    machine.add(request("b", prompt=9), 0.0)
    seen = []
    for _ in range(4):
        plan = machine.plan(0.0)
        seen.append(shape(plan))
        machine.commit(plan, answer(plan), 0.0)
    assert [pieces[0] for pieces in seen] == [(0, at, 1, True) for at in range(2, 6)]
    assert [pieces[1] for pieces in seen] == [
        (1, 0, 3, False),
        (1, 3, 3, False),
        (1, 6, 3, True),
        (1, 9, 1, True),
    ]


def test_first_come_first_served_and_a_place_is_reused_in_the_next_step() -> None:
    machine = scheduler(sequences=2)
    for name in "abc":
        machine.add(request(name, prompt=1, new=1 if name == "a" else 3), 0.0)
    assert [event.request_id for event in step(machine)] == ["a", "b"]
    plan = machine.plan(0.0)
    assert machine.request_ids(plan) == ("b", "c")
    assert [piece.block_ids for piece in plan.slices] == [(1,), (0,)]  # c has a's block


def test_positions_come_from_the_sequence_whatever_block_it_has() -> None:
    machine = scheduler(sequences=2)
    machine.add(request("a", prompt=1, new=1), 0.0)
    machine.add(request("b", prompt=2, new=5), 0.0)
    step(machine)
    machine.add(request("c", prompt=3), 0.0)
    plan = machine.plan(0.0)
    assert [(piece.start, piece.block_ids) for piece in plan.slices] == [(2, (1,)), (0, (0,))]


def test_the_history_is_given_only_where_a_penalty_looks_at_it() -> None:
    machine = scheduler(budget=8)
    machine.add(request("plain", prompt=2), 0.0)
    machine.add(request("penalised", prompt=2, penalty=1.5), 0.0)
    step(machine, 60)
    draws = [piece.draw for piece in machine.plan(0.0).slices]
    assert [(draw.history, draw.num_prompt_tokens) for draw in draws if draw] == [
        ((), 0),
        ([0, 1, 60], 2),
    ]


def test_a_fault_in_one_sequence_ends_that_one_only() -> None:
    machine = scheduler()
    machine.add(request("a"), 0.0)
    machine.add(request("b"), 0.0)
    plan = machine.plan(0.0)
    result = StepResult((Drawn(0, -1, error="no finite logit"), Drawn(1, 5)), 0.0, 0.0)
    assert machine.commit(plan, result, 1.0) == [
        TokenEvent("a", None, 1.0, finish=Finish(FinishReason.ERROR, "no finite logit")),
        TokenEvent("b", 5, 1.0),
    ]
    assert (machine.num_running, machine.num_used_blocks) == (1, 1)


@pytest.mark.parametrize(
    ("drawn", "cause"),
    [
        ((), "the runner gave no token"),
        ((Drawn(0, 100),), "outside 0…99"),
        ((Drawn(0, -1),), "outside 0…99"),
    ],
)
def test_a_runner_that_breaks_its_word_ends_the_sequence(
    drawn: tuple[Drawn, ...], cause: str
) -> None:
    machine = scheduler()
    machine.add(request("a"), 0.0)
    (event,) = machine.commit(machine.plan(0.0), StepResult(drawn, 0.0, 0.0), 0.0)
    assert event.finish is not None
    assert event.finish.reason is FinishReason.ERROR
    assert cause in str(event.finish.cause)


def test_a_fault_inside_a_prompt_ends_the_sequence_too() -> None:
    machine = scheduler(budget=2)
    machine.add(request("a", prompt=5), 0.0)
    result = StepResult((Drawn(0, -1, error="the step failed"),), 0.0, 0.0)
    (event,) = machine.commit(machine.plan(0.0), result, 0.0)
    assert event.finish == Finish(FinishReason.ERROR, "the step failed")
    assert machine.num_used_blocks == 0


def test_abort_waiting_running_gone() -> None:
    machine = scheduler(sequences=1, blocks=1)
    for name in "abc":
        machine.add(request(name), 0.0)
    step(machine)
    cancelled = Finish(FinishReason.CANCELLED)
    assert machine.abort("b", 1.0) == [TokenEvent("b", None, 1.0, finish=cancelled)]
    assert machine.abort("a", 1.0) == [TokenEvent("a", None, 1.0, finish=cancelled)]
    assert machine.abort("a", 1.0) == []
    assert machine.num_used_blocks == 0
    assert machine.request_ids(machine.plan(0.0)) == ("c",)


def test_a_sequence_aborted_between_plan_and_commit_is_passed_over() -> None:
    machine = scheduler()
    machine.add(request("a"), 0.0)
    plan = machine.plan(0.0)
    machine.abort("a", 0.0)
    machine.add(request("a"), 0.0)  # the same name is another sequence
    assert machine.commit(plan, answer(plan), 0.0) == []
    assert shape(machine.plan(0.0)) == [(1, 0, 3, True)]


def test_sched_7_a_request_id_in_progress_is_refused() -> None:
    machine = scheduler()
    machine.add(request("a"), 0.0)
    with pytest.raises(InvalidRequest, match="already in progress"):
        machine.add(request("a"), 0.0)
    machine.abort("a", 0.0)
    machine.add(request("a"), 0.0)
    assert machine.num_waiting == 1


def test_sched_1_what_can_never_fit_is_refused_and_blocks_nobody() -> None:
    machine = scheduler(sequences=4, blocks=4, size=4, context=32)
    numbers = r"may need 5 cache blocks \(17 tokens\), there are 4 \(16 tokens\)"
    with pytest.raises(InvalidRequest, match=f"^max_tokens: .*{numbers}"):
        machine.add(request("big", prompt=10, new=8), 0.0)
    with pytest.raises(InvalidRequest, match=f"^prompt: .*{numbers}"):
        machine.add(request("long", prompt=17, new=1), 0.0)
    machine.add(request("small", prompt=3, new=2), 0.0)
    assert [event.request_id for event in step(machine)] == ["small"]


@pytest.mark.parametrize(
    ("prompt", "new", "count", "reason"),
    [
        (63, 1, 1, FinishReason.LENGTH),
        (40, 24, 24, FinishReason.LENGTH),
        (40, 25, 24, FinishReason.CONTEXT),
        (40, 1000, 24, FinishReason.CONTEXT),
        (1, 1, 1, FinishReason.LENGTH),
    ],
)
def test_stop_6_stop_7_length_and_context(
    prompt: int, new: int, count: int, reason: FinishReason
) -> None:
    machine = scheduler(budget=16, context=64, size=64)
    machine.add(request("a", prompt, new), 0.0)
    events: list[TokenEvent] = []
    while machine.num_waiting + machine.num_running:
        events += step(machine)
    assert len(events) == count
    assert [event.finish.reason for event in events if event.finish] == [reason]
