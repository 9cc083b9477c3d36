"""Guesses in a step: room, budget, blocks, and that nothing but the number of steps tells.

The fake writes into the blocks what a kernel would, wrong guesses too, and reads it back.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import InvalidRequest
from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.regions import RegionPool
from firsthand.request import Request, SamplingParams, StopRules
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.memory import BlockMemory
from firsthand.scheduling.plan import Drawn, StepResult
from firsthand.scheduling.scheduler import Scheduler
from tests.scheduling.bench import Bench
from tests.scheduling.fakes import VOCAB, FakeModel

SIZE = 4


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_every_token_is_that_of_a_run_alone(data: st.DataObject) -> None:
    """Sharing, preemption, small budgets, several sequences of a request, aborts."""
    bench = Bench(
        budget=data.draw(st.integers(4, 24)),
        sequences=data.draw(st.integers(1, 4)),
        blocks=data.draw(st.integers(10, 40)),
        size=data.draw(st.sampled_from([1, 2, 4, 8])),
        context=data.draw(st.sampled_from([24, 40])) if data.draw(st.booleans()) else 10,
        shares=data.draw(st.booleans()),
        guesses=data.draw(st.integers(1, 9)),
        step_guesses=data.draw(st.integers(1, 20)),
    )
    prompt = [1, 2, 3, 4, 5, 6]
    for number in range(data.draw(st.integers(1, 6))):
        length = data.draw(st.integers(1, 6))
        new = data.draw(st.integers(1, 20))
        try:
            bench.add(f"r{number}", prompt[:length], new, n=data.draw(st.integers(1, 3)))
        except InvalidRequest:
            continue  # it can never fit
        if data.draw(st.booleans()):
            bench.step()
    bench.finish()


def test_fewer_steps_for_the_same_tokens_and_never_over_the_budget() -> None:
    steps = {}
    for guesses in (0, 6):
        bench = Bench(budget=7, sequences=2, guesses=guesses, context=64)
        bench.add("a", 3, 40)
        bench.add("b", 3, 40)
        bench.finish()
        steps[guesses] = len(bench.plans)
        for plan in bench.plans:
            assert plan.num_tokens + plan.max_guesses <= 7
    assert bench.model.num_accepted > 10
    assert steps[6] < steps[0]


def test_no_room_beside_a_prompt_nor_for_the_last_token() -> None:
    bench = Bench(guesses=4)
    bench.add("a", 3, 3)
    bench.step()
    assert bench.plans[-1].max_guesses == 0, "a prompt"
    bench.step()
    assert bench.plans[-1].max_guesses == 1, "two tokens are left, so one guess has a place"
    bench.add("b", 8, 2)
    bench.finish()


def used_by_length(guesses: int, memory: BlockMemory) -> dict[int, int]:
    """Used blocks after each step, by the number of known tokens."""
    size = SIZE if memory.grows else SIZE * memory.num_blocks  # a region has one id
    model = FakeModel(size, guesses=Random(0) if guesses else None)
    machine = Scheduler(Limits(VOCAB, 64, 1, 64, (), guesses, 64), memory)
    request = Request("a", (1, 2, 3), SamplingParams(), StopRules(44), seed=1)
    machine.add(request, 0.0)
    num_known = 3
    used = {}
    while machine.num_running + machine.num_waiting:
        plan = machine.plan(0.0)
        num_known += len(machine.commit(plan, model.run(plan), 0.0))
        machine.check_invariants()
        used[num_known] = machine.num_used_blocks
    return used


class Still:
    """A mover that is never asked."""

    def move_slots(self, source: int, target: int, count: int) -> None:
        raise AssertionError("nothing is to be moved")


@pytest.mark.parametrize("grows", [True, False])
def test_blocks_are_those_of_plain_decoding_after_every_step(grows: bool) -> None:
    def memory() -> BlockMemory:
        if grows:
            return BlockPool(16, SIZE)
        return RegionPool(16, SIZE, Still(), clock=lambda: 0.0, headroom=1.0)

    plain, guessed = used_by_length(0, memory()), used_by_length(7, memory())
    assert len(guessed) < len(plain)
    assert guessed.items() <= plain.items()


def test_a_guess_evicts_nobody() -> None:
    bench = Bench(sequences=2, blocks=6, size=2, context=12, guesses=8)
    bench.add("a", 2, 4)
    bench.add("b", 2, 4)
    bench.finish()
    assert bench.num_preempted == 0


def test_what_a_runner_may_not_give_ends_one_sequence() -> None:
    bench = Bench(guesses=2)
    for name in ("a", "b"):
        bench.add(name, 3, 8)
    bench.step()
    plan = bench.machine.plan(0.0)
    first, second = (piece.sequence_id for piece in plan.slices)
    then = (Drawn(first, 1), Drawn(first, VOCAB))
    result = StepResult((Drawn(first, 1, then=then), Drawn(second, 1)), 0.0, 0.0)
    events = bench.machine.commit(plan, result, 0.0)
    assert [event.token_id for event in events] == [1, 1, None, 1]
    assert events[2].finish is not None and "outside" in str(events[2].finish.cause)
    bench.machine.check_invariants()
    plan = bench.machine.plan(0.0)
    many = tuple(Drawn(second, 1) for _ in range(3))
    (event,) = bench.machine.commit(plan, StepResult((Drawn(second, 1, then=many),), 0, 0), 0.0)
    assert event.finish is not None and "not asked for" in str(event.finish.cause)
    assert bench.machine.num_used_blocks == 0
