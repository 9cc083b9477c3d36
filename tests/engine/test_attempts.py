"""A step that fails is run again in halves: who is hit, what it costs, what it may not undo."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsthand.engine.attempts import MAX_ATTEMPTS, run_plan
from firsthand.errors import DeviceLost
from firsthand.request import SamplingParams
from firsthand.scheduling.outcomes import fault_of
from firsthand.scheduling.plan import (
    BlockCopy,
    Draw,
    Drawn,
    Pool,
    SequenceSlice,
    StepPlan,
    StepResult,
    WasRead,
)


class Poisoned:
    """Draws sequence id + 1000; raises for each plan that holds one of `culprits`."""

    def __init__(self, *culprits: int, copies_fail: int = 0) -> None:
        self.culprits = frozenset(culprits)
        self.copies_fail = copies_fail  # so many times
        self.plans: list[StepPlan] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if plan.copies and self.copies_fail:
            self.copies_fail -= 1
            raise IndexError("no such block")
        hit = self.culprits.intersection(piece.sequence_id for piece in plan.slices)
        if hit:
            raise ValueError(f"poison in {min(hit)}")
        drawn = tuple(
            Drawn(piece.sequence_id, piece.sequence_id + 1000)
            for piece in plan.slices
            if piece.draw is not None
        )
        reads = tuple(
            WasRead(piece.sequence_id, carry=b"read") for piece in plan.slices if piece.read
        )
        return StepResult(drawn, forward_ms=1.0, sample_ms=0.5, reads=reads)


def plan_of(num: int, *, drawing: Callable[[int], bool] = bool, copies: int = 0) -> StepPlan:
    """Sequences 1 … num, of a token each."""
    draw = Draw(SamplingParams(), seed=0, position=1)
    slices = tuple(
        SequenceSlice(each, (7,), 0, (each,), draw if drawing(each) else None)
        for each in range(1, num + 1)
    )
    return StepPlan(slices, tuple(BlockCopy(each, each + 100) for each in range(copies)))


@given(num=st.integers(1, 40), data=st.data())
def test_s_45_only_those_at_fault_have_an_error(num: int, data: st.DataObject) -> None:
    """Two at fault are always found alone: 2 · 2 · log2(40) attempts are within the bound."""
    culprits = data.draw(st.sets(st.integers(1, num), max_size=2))
    runner = Poisoned(*culprits)
    ran = run_plan(runner, plan_of(num))
    assert [one.sequence_id for one in ran.result.drawn] == list(range(1, num + 1))
    for one in ran.result.drawn:
        if one.sequence_id in culprits:
            assert one.error == f"the step failed: ValueError: poison in {one.sequence_id}"
        else:
            assert (one.token_id, one.error) == (one.sequence_id + 1000, None)
    assert ran.num_failed == len(culprits)
    assert (ran.error is None) is (not culprits)
    assert ran.num_attempts == len(runner.plans) - 1


def test_what_was_read_of_the_others_prompts_is_kept() -> None:
    plan = plan_of(5, drawing=lambda each: False)
    pooled = tuple(piece._replace(read=Pool(0, b"")) for piece in plan.slices)
    ran = run_plan(Poisoned(3), replace(plan, slices=pooled))
    assert [one.sequence_id for one in ran.result.reads] == [1, 2, 4, 5]
    assert [one.sequence_id for one in ran.result.drawn] == [3]
    assert ran.result.drawn[0].error == fault_of(pooled[2], ran.result.drawn[0], None, 10)


def test_what_one_at_fault_costs() -> None:
    runner = Poisoned(77)
    ran = run_plan(runner, plan_of(256))
    assert ran.num_attempts == 2 * math.log2(256)
    assert sum(plan.num_tokens for plan in runner.plans) < 3 * 256
    num_parts = math.log2(256)  # that succeeded
    assert (ran.result.forward_ms, ran.result.sample_ms) == (num_parts, num_parts / 2)


def test_one_alone_is_not_tried_again() -> None:
    ran = run_plan(Poisoned(1), plan_of(1))
    assert (ran.num_attempts, ran.num_failed) == (0, 1)


def test_a_machine_that_always_fails_costs_a_bounded_number_of_attempts() -> None:
    everybody = range(1, 257)
    runner = Poisoned(*everybody)
    ran = run_plan(runner, plan_of(256))
    assert ran.num_attempts == len(runner.plans) - 1 == MAX_ATTEMPTS
    assert [one.sequence_id for one in ran.result.drawn if one.error] == list(everybody)
    assert ran.num_failed == 256


def test_a_slice_without_a_draw_fails_too_and_has_no_token_otherwise() -> None:
    ran = run_plan(Poisoned(2), plan_of(4, drawing=lambda each: each > 2))
    assert [(one.sequence_id, one.error is None) for one in ran.result.drawn] == [
        (2, False),
        (3, True),
        (4, True),
    ]


def test_copies_are_made_again_once_and_before_anything_succeeds() -> None:
    runner = Poisoned(3)
    ran = run_plan(runner, plan_of(4, copies=2))
    assert ran.num_failed == 1
    assert [(len(plan.slices), len(plan.copies)) for plan in runner.plans] == [
        (4, 2),
        (0, 2),
        (2, 0),
        (2, 0),
        (1, 0),
        (1, 0),
    ]


@pytest.mark.parametrize(("times", "num_failed"), [(1, 0), (2, 4)])
def test_copies_that_fail(times: int, num_failed: int) -> None:
    ran = run_plan(Poisoned(copies_fail=times), plan_of(4, copies=1))
    assert ran.num_failed == num_failed
    assert ran.error == "the step failed: IndexError: no such block"


def test_what_passes_by_itself_harms_nobody() -> None:
    class Once(Poisoned):
        def run(self, plan: StepPlan) -> StepResult:
            if not self.plans:
                self.plans.append(plan)
                raise OSError("a moment")
            return super().run(plan)

    ran = run_plan(Once(), plan_of(5))
    assert (ran.num_failed, ran.num_attempts) == (0, 2)
    assert ran.error == "the step failed: OSError: a moment"


class Starved(Poisoned):
    """Refused memory for more than `most` slices at once, so many times."""

    def __init__(self, most: int, times: int) -> None:
        super().__init__()
        self.most, self.times = most, times

    def run(self, plan: StepPlan) -> StepResult:
        if len(plan.slices) > self.most and self.times:
            self.plans.append(plan)
            self.times -= 1
            raise MemoryError
        return super().run(plan)


def test_s62_what_was_refused_memory_is_computed_as_it_was_when_some_is_freed() -> None:
    runner = Starved(0, 1)
    ran = run_plan(runner, plan_of(4, copies=1), lambda: True)
    assert runner.plans == [plan_of(4, copies=1)] * 2
    assert (ran.num_attempts, ran.num_failed, ran.out_of_memory) == (1, 0, True)


@pytest.mark.parametrize("freed", [False, True])
def test_s61_else_in_halves_which_need_less(freed: bool) -> None:
    ran = run_plan(Starved(2, 9), plan_of(4), lambda: freed)
    assert (ran.num_failed, ran.out_of_memory) == (0, True)
    assert ran.num_attempts == 2 + freed


def test_other_faults_free_nothing() -> None:
    ran = run_plan(Poisoned(1), plan_of(2), lambda: pytest.fail("asked for memory"))
    assert not ran.out_of_memory


def test_an_interrupt_is_no_fault_of_a_request() -> None:
    class Interrupted:
        def run(self, plan: StepPlan) -> StepResult:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(Interrupted(), plan_of(3))


def test_other_fields_of_the_plan_are_kept() -> None:
    plan = plan_of(2)
    runner = Poisoned(1)
    run_plan(runner, plan)
    assert all(replace(part, slices=plan.slices) == plan for part in runner.plans)


def test_s61_a_device_that_failed_for_good_is_not_tried_again() -> None:
    """Neither at once nor among the halves of a step that failed for another reason."""

    class Lost(Poisoned):
        def run(self, plan: StepPlan) -> StepResult:
            if self.plans or not self.culprits:
                raise DeviceLost("the card failed: an illegal memory access")
            return super().run(plan)

    with pytest.raises(DeviceLost):
        run_plan(Lost(), plan_of(4))
    with pytest.raises(DeviceLost):
        run_plan(Lost(1), plan_of(4))
