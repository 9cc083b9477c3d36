"""The window of requests that generate nothing, under a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.engine.microbatch import MicroBatcher, Window
from firsthand.errors import InvalidRequest
from firsthand.kvcache.blocks import BlockPool
from firsthand.request import FinishReason, Pooling, Request, SamplingParams, StopRules, TokenEvent
from firsthand.scheduling.limits import Limits
from firsthand.scheduling.plan import Drawn, StepPlan, StepResult, WasRead
from firsthand.scheduling.scheduler import Scheduler

WINDOW = Window(max_batch=4, max_wait_s=0.05, min_batch=2)


def text(name: str, length: int = 2, deadline_s: float | None = None) -> Request:
    ids = (1,) * length
    return Request(
        name, ids, SamplingParams(), StopRules(0), 0, deadline_s=deadline_s, pooling=Pooling.LAST
    )


def names(batcher: MicroBatcher, now_s: float) -> list[str]:
    return [one.request.request_id for one in batcher.take(now_s)]


def test_a_lone_request_starts_when_its_wait_is_over_and_not_before() -> None:
    """Nobody else comes: a window that looks at arrivals only would hold it for ever."""
    batcher = MicroBatcher(WINDOW)
    batcher.add(text("a"), 1.0)
    assert batcher.due_s() == 1.05
    assert names(batcher, 1.049) == []
    assert names(batcher, 1.05) == ["a"]
    assert batcher.due_s() is None


def test_an_idle_engine_starts_with_the_smallest_batch() -> None:
    batcher = MicroBatcher(WINDOW)
    batcher.add(text("a"), 1.0)
    batcher.add(text("b"), 1.01)
    assert names(batcher, 1.01) == ["a", "b"]


def test_while_a_batch_runs_the_next_one_grows_until_it_is_full_or_late() -> None:
    batcher = MicroBatcher(WINDOW)
    for name in "abcde":
        batcher.add(text(name), 1.0)
    assert names(batcher, 1.0) == ["a", "b", "c", "d"], "no more than the largest"
    assert names(batcher, 1.0) == [], "one alone"
    batcher.add(text("f"), 1.02)
    assert batcher.due_s() == 1.05, "a batch runs"
    for name in "abcd":
        batcher.ended(name)
    assert names(batcher, 1.03) == ["e", "f"], "it has ended"


def test_the_oldest_goes_first_and_takes_those_of_its_length() -> None:
    batcher = MicroBatcher(Window(max_batch=3, max_wait_s=1.0, min_batch=3))
    for name, length in (("old", 10), ("short", 1), ("near", 12), ("long", 90), ("equal", 10)):
        batcher.add(text(name, length), 0.0)
    assert names(batcher, 0.0) == ["old", "equal", "near"]


def test_a_deadline_comes_before_the_longest_wait() -> None:
    batcher = MicroBatcher(WINDOW)
    batcher.add(text("a", deadline_s=1.02), 1.0)
    assert batcher.due_s() == 1.02


def test_one_that_leaves_is_not_started() -> None:
    batcher = MicroBatcher(WINDOW)
    batcher.add(text("a"), 1.0)
    assert batcher.remove("b") is None
    found = batcher.remove("a")
    assert found is not None and found.request_id == "a"
    assert batcher.due_s() is None


@settings(deadline=None, max_examples=100)
@given(
    gaps_ms=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    runs_ms=st.integers(1, 200),
    window=st.builds(Window, st.integers(4, 9), st.just(0.05), st.integers(1, 4)),
)
def test_nobody_ever_waits_longer_than_the_window(
    gaps_ms: list[int], runs_ms: int, window: Window
) -> None:
    """A loop that sleeps until `due_s`: every request starts once, in time, in batches of a size
    that is allowed."""
    batcher, ends = MicroBatcher(window), list[tuple[int, str]]()
    arrivals = {f"r{number}": at_ms for number, at_ms in enumerate(accumulate(gaps_ms))}
    started: dict[str, int] = {}
    for now_ms in range(sum(gaps_ms) + 100):
        for name, at_ms in arrivals.items():
            if at_ms == now_ms:
                batcher.add(text(name), now_ms / 1e3)
        for at_ms, name in ends:
            if at_ms == now_ms:
                batcher.ended(name)
        while batch := names(batcher, now_ms / 1e3):
            assert len(batch) <= window.max_batch
            for name in batch:
                assert name not in started
                started[name] = now_ms
                ends.append((now_ms + runs_ms, name))
    assert started.keys() == arrivals.keys()
    assert all(started[name] - arrivals[name] <= 51 for name in started)  # 50, and a rounding


@pytest.mark.parametrize(
    ("field", "window"),
    [
        ("max_batch_size", (0, 0.0, 1)),
        ("max_batch_wait_s", (4, -0.1, 1)),
        ("max_batch_wait_s", (4, 11.0, 1)),
        ("min_batch_size", (4, 0.0, 0)),
        ("min_batch_size", (4, 0.0, 5)),
    ],
)
def test_a_window_is_checked(field: str, window: tuple[int, float, int]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Window(*window)
    assert refused.value.field == field


class Machine:
    """An engine whose clock is set by the test."""

    def __init__(self, window: Window = WINDOW) -> None:
        self.now_s = 1.0
        self.facts: list[StepFacts] = []
        scheduler = Scheduler(Limits(100, 50, 8, 64), BlockPool(8, 50))
        self.engine = Engine(scheduler, self, lambda: self.now_s, self.facts.append, window=window)

    def run(self, plan: StepPlan) -> StepResult:
        drawn = tuple(Drawn(piece.sequence_id, 5) for piece in plan.slices if piece.draw)
        reads = tuple(WasRead(piece.sequence_id, carry=b"x") for piece in plan.slices if piece.read)
        return StepResult(drawn, 0.0, 0.0, reads)

    def until(self, end_s: float) -> Iterator[TokenEvent]:
        """As a loop does that sleeps until something is due."""
        while True:
            while self.engine.has_work:
                yield from self.engine.step()
            idle_s = self.engine.idle_s
            if idle_s is None or self.now_s + idle_s > end_s:
                return
            self.now_s += idle_s


def ends(events: Iterator[TokenEvent]) -> list[tuple[str, float]]:
    return [(event.request_id, round(event.at_s, 6)) for event in events if event.finish]


def test_the_engine_holds_a_text_back_and_sleeps_until_it_is_due() -> None:
    machine = Machine()
    machine.engine.add(text("a"))
    assert not machine.engine.has_work
    assert machine.engine.idle_s == pytest.approx(0.05)
    assert ends(machine.until(2.0)) == [("a", 1.05)]
    (batch,) = machine.facts[0].batches
    assert batch.size == 1
    assert batch.wait_s == pytest.approx(0.05)
    assert machine.engine.idle_s is None


def test_what_generates_waits_for_nobody_and_holds_nobody_up() -> None:
    machine = Machine()
    machine.engine.add(text("a"))
    machine.engine.add(Request("b", (1,), SamplingParams(), StopRules(3), 0))
    assert ends(machine.until(2.0)) == [("b", 1.0), ("a", 1.05)]


def test_a_batch_runs_in_one_step_and_the_next_follows_its_end() -> None:
    machine = Machine()
    for name in "abcdef":
        machine.engine.add(text(name))
    assert {at_s for _, at_s in ends(machine.until(1.0))} == {1.0}
    assert [[b.size for b in facts.batches] for facts in machine.facts] == [[4], [2]]


def test_one_that_is_held_can_be_aborted_and_has_its_id_for_itself() -> None:
    machine = Machine()
    machine.engine.add(text("a"))
    with pytest.raises(InvalidRequest, match="in progress"):
        machine.engine.add(text("a"))
    (event,) = machine.engine.abort("a")
    assert event.finish is not None and event.finish.reason is FinishReason.CANCELLED
    assert machine.engine.idle_s is None


def test_a_deadline_that_passes_in_the_window_is_told_in_time() -> None:
    machine = Machine()
    machine.engine.add(text("a", deadline_s=1.02))
    (event,) = machine.until(2.0)
    assert event.finish is not None and event.finish.reason is FinishReason.DEADLINE
    assert event.at_s == pytest.approx(1.02)


def test_what_can_never_run_is_refused_at_the_door() -> None:
    machine = Machine()
    with pytest.raises(InvalidRequest):
        machine.engine.add(text("a", length=51))
    assert machine.engine.idle_s is None
