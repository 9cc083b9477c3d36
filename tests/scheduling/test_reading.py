"""What is asked of a prompt: which rows are read, once, and what the cache may then give."""

from __future__ import annotations

import pytest

from firsthand.errors import InvalidRequest
from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import PrefixCache
from firsthand.request import (
    Finish,
    FinishReason,
    Pooling,
    Priority,
    PromptPart,
    Request,
    SamplingParams,
    StopRules,
    TokenEvent,
    TokenScore,
)
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import Drawn, Pool, Score, StepPlan, StepResult, WasRead
from firsthand.scheduling.reading import reading_of
from firsthand.scheduling.scheduler import Scheduler

SIZE = 4


def request(name: str = "a", prompt: int = 10, new: int = 0, **more: object) -> Request:
    given = {"prompt_logprobs": 0} | more if "pooling" not in more else more
    return Request(name, tuple(range(prompt)), SamplingParams(), StopRules(new), seed=7, **given)  # type: ignore[arg-type]


def scheduler(budget: int = 4, blocks: int = 8, sequences: int = 2) -> Scheduler:
    pool = BlockPool(blocks, SIZE)
    return Scheduler(Limits(100, 32, sequences, budget), pool, prefix=PrefixCache(pool))


def answer(plan: StepPlan) -> StepResult:
    """A score of a token is minus itself; a sum is the rows that were added."""
    drawn, reads = [], []
    for piece in plan.slices:
        if piece.draw is not None:
            drawn.append(Drawn(piece.sequence_id, 50))
        match piece.read:
            case Score(targets=targets):
                scores = tuple(TokenScore(-float(target)) for target in targets)
                reads.append(WasRead(piece.sequence_id, scores))
            case Pool(first=first, carry=carry):
                carry += bytes(range(piece.start + first, piece.start + len(piece.token_ids)))
                reads.append(WasRead(piece.sequence_id, carry=carry))
    return StepResult(tuple(drawn), 0.0, 0.0, tuple(reads))


def play(machine: Scheduler, most: int = 40) -> list[TokenEvent]:
    events = []
    for _ in range(most):
        plan = machine.plan(0.0)
        machine.check_invariants()
        events += machine.commit(plan, answer(plan), 0.0)
        machine.check_invariants()
    return events


def scores(events: list[TokenEvent], name: str = "a") -> list[float]:
    return [
        score.logprob
        for event in events
        if event.request_id == name and event.prompt is not None
        for score in event.prompt.scores
    ]


def test_a_prompt_is_scored_in_the_pieces_in_which_it_is_computed() -> None:
    """Every token but the first, once, in order; the last row is of what comes after."""
    machine = scheduler()
    machine.add(request(), 0.0)
    asked = []
    for _ in range(3):
        plan = machine.plan(0.0)
        asked += [(piece.start, len(piece.token_ids), piece.read) for piece in plan.slices]
        machine.commit(plan, answer(plan), 0.0)
    assert asked == [
        (0, 4, Score(0, (1, 2, 3, 4), 0)),
        (4, 4, Score(0, (5, 6, 7, 8), 0)),
        (8, 2, Score(0, (9,), 0)),
    ]
    assert machine.num_running == 0


def test_where_nothing_is_generated_the_end_comes_with_the_last_part() -> None:
    machine = scheduler(budget=16)
    machine.add(request(prompt=3), 0.0)
    part = PromptPart((TokenScore(-1.0), TokenScore(-2.0)))
    end = Finish(FinishReason.LENGTH, 0)
    assert play(machine, 2) == [TokenEvent("a", None, 0.0, finish=end, prompt=part)]


def test_scores_come_before_or_with_the_first_token() -> None:
    machine = scheduler()
    machine.add(request(prompt=6, new=2), 0.0)
    events = play(machine, 5)
    assert [(event.token_id, event.prompt is not None) for event in events] == [
        (None, True),
        (50, True),
        (50, False),
    ]
    assert scores(events) == [-1.0, -2.0, -3.0, -4.0, -5.0]


def test_what_is_to_be_read_is_not_found_in_the_cache_and_can_be_found_by_others() -> None:
    machine = scheduler(budget=16)
    machine.add(request("first", prompt=9), 0.0)
    play(machine, 2)
    machine.add(request("again", prompt=9), 0.0)
    assert scores(play(machine, 2), "again") == [-float(token) for token in range(1, 9)]
    assert machine.last_plan.num_prefix_hit_tokens == 0
    machine.add(request("plain", prompt=9, new=1, prompt_logprobs=None), 0.0)
    machine.plan(0.0)
    assert machine.last_plan.num_prefix_hit_tokens == 8


def test_the_last_hidden_state_needs_the_last_row_only() -> None:
    machine = scheduler(budget=16)
    for name in ("first", "again"):
        machine.add(request(name, prompt=9, pooling=Pooling.LAST), 0.0)
        plan = machine.plan(0.0)
        (piece,) = plan.slices
        assert piece.read == Pool(len(piece.token_ids) - 1, b"")
        (event,) = machine.commit(plan, answer(plan), 0.0)
        assert event.prompt == PromptPart(pooled=bytes([8]))
    assert machine.last_plan.num_prefix_hit_tokens == 8


def test_a_mean_takes_every_row_once_and_goes_on_from_step_to_step() -> None:
    machine = scheduler()
    machine.add(request(pooling=Pooling.MEAN), 0.0)
    (event,) = play(machine, 4)
    assert event.prompt == PromptPart(pooled=bytes(range(10)))


@pytest.mark.parametrize("pooling", [None, Pooling.MEAN])
def test_after_an_eviction_what_was_read_is_not_read_again(pooling: Pooling | None) -> None:
    """A long prompt loses its blocks to a class above; each row is still told of once."""
    machine = scheduler(budget=4, blocks=4, sequences=4)
    asks = {"prompt_logprobs": 0} if pooling is None else {"pooling": pooling}
    machine.add(request(prompt=14, priority=Priority.BACKGROUND, **asks), 0.0)
    events: list[TokenEvent] = []
    num_evicted = 0
    for step in range(60):
        if step == 2:
            urgent = request("b", 4, 9, prompt_logprobs=None, priority=Priority.URGENT)
            machine.add(urgent, 0.0)
        plan = machine.plan(0.0)
        num_evicted += machine.last_plan.num_preempted
        machine.check_invariants()
        events += machine.commit(plan, answer(plan), 0.0)
    assert num_evicted, "or it shows nothing"
    if pooling is None:
        assert scores(events) == [-float(token) for token in range(1, 14)]
    else:
        (part,) = [event.prompt for event in events if event.prompt is not None]
        assert part.pooled == bytes(range(14))


def test_of_several_answers_the_first_reads_the_prompt() -> None:
    machine = scheduler(budget=16, sequences=4)
    machine.add(request(prompt=6, new=2, n=3), 0.0)
    events = play(machine, 6)
    assert {event.index for event in events if event.prompt is not None} == {0}
    assert sum(event.finish is not None for event in events) == 3


def test_what_a_runner_reads_wrongly_ends_its_request_alone() -> None:
    machine = scheduler(budget=16)
    machine.add(request("a", prompt=4), 0.0)
    machine.add(request("b", prompt=4), 0.0)
    plan = machine.plan(0.0)
    result = answer(plan)
    first, second = result.reads
    cut = (first._replace(scores=first.scores[:1]), second)
    events = machine.commit(plan, StepResult(result.drawn, 0.0, 0.0, cut), 0.0)
    assert [event.finish and event.finish.reason for event in events] == [
        FinishReason.ERROR,
        FinishReason.LENGTH,
    ]
    assert machine.num_used_blocks == 0


def test_of_a_single_token_nothing_can_be_told() -> None:
    assert reading_of(request(prompt=1), 0) is None
    machine = scheduler()
    machine.add(request(prompt=1), 0.0)
    (event,) = play(machine, 2)
    assert (event.prompt, event.finish) == (None, Finish(FinishReason.LENGTH, 0))


def test_a_prompt_may_fill_the_context_where_nothing_follows() -> None:
    machine = scheduler(budget=32)
    machine.add(request(prompt=32), 0.0)
    assert len(scores(play(machine, 2))) == 31
    with pytest.raises(InvalidRequest, match="do not fit in a context of 32"):
        machine.add(request("b", prompt=33), 0.0)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("max_tokens", {"new": 1, "pooling": Pooling.LAST}),
        ("max_tokens", {"prompt_logprobs": None}),
        ("max_tokens", {"prompt_logprobs": 1, "pooling": Pooling.MEAN}),
        ("n", {"n": 2}),
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("prompt_logprobs", {"prompt_logprobs": 20, "prompt": 12_484}),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(field: str, given: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request(**given)  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize("took_s", [0.5, 1.0])
def test_the_only_vector_may_come_too_late(took_s: float) -> None:
    machine = scheduler()
    machine.add(request(prompt=4, pooling=Pooling.LAST, deadline_s=1.0), 0.0)
    plan = machine.plan(0.0)
    (event,) = machine.commit(plan, answer(plan), took_s)
    assert event.finish is not None
    late = took_s >= 1.0
    assert event.finish.reason is (FinishReason.DEADLINE if late else FinishReason.LENGTH)
