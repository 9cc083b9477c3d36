"""Why a sequence ends, reason by reason, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.request import Finish, FinishReason, RepetitionGuard, StopRules
from firsthand.scheduling.stopping import finish_after, repeated_run

PROMPT = [5, 5, 5]


def finish(rules: StopRules, new: list[int], context: int = 100) -> Finish | None:
    return finish_after(rules, PROMPT + new, len(PROMPT), context)


@pytest.mark.parametrize("end", [5, 7, 9])
def test_stop_4_every_end_token_ends(end: int) -> None:
    rules = StopRules(max_tokens=10, end_token_ids=frozenset({5, 7, 9}))
    assert finish(rules, [1]) is None
    assert finish(rules, [1, end]) == Finish(FinishReason.END_TOKEN, end)


def test_ignored_end_tokens_are_ordinary_unless_the_request_lists_them() -> None:
    ends = frozenset({7})
    assert finish(StopRules(10, end_token_ids=ends, ignore_end=True), [7]) is None
    both = StopRules(10, end_token_ids=ends, stop_token_ids=ends, ignore_end=True)
    assert finish(both, [7]) == Finish(FinishReason.STOP_ID, 7)


def test_no_end_before_min_tokens() -> None:
    rules = StopRules(10, 3, frozenset({7}), frozenset({8}))
    assert finish(rules, [7, 8]) is None
    assert finish(rules, [7, 8, 7]) == Finish(FinishReason.END_TOKEN, 7)
    assert finish(rules, [7, 8, 8]) == Finish(FinishReason.STOP_ID, 8)


def test_the_first_reason_of_the_documented_order_wins() -> None:
    guard = RepetitionGuard(max_run=1, times=2)
    everything = StopRules(2, 0, frozenset({7}), frozenset({7}), repetition=guard)
    assert finish(everything, [7, 7], context=5) == Finish(FinishReason.END_TOKEN, 7)
    no_end = StopRules(2, stop_token_ids=frozenset({7}), repetition=guard)
    assert finish(no_end, [7, 7], context=5) == Finish(FinishReason.STOP_ID, 7)
    no_stop = StopRules(2, repetition=guard)
    assert finish(no_stop, [7, 7], context=5) == Finish(FinishReason.REPETITION, 1)
    assert finish(StopRules(2), [7, 7], context=5) == Finish(FinishReason.LENGTH, 2)
    assert finish(StopRules(3), [7, 7], context=5) == Finish(FinishReason.CONTEXT, 5)
    assert finish(StopRules(3), [7, 7], context=6) is None


def test_the_guard_looks_at_new_tokens_only() -> None:
    guard = RepetitionGuard(max_run=4, times=3)
    assert repeated_run([1, 1, 1, 1], 2, guard) is None
    assert repeated_run([1, 1, 1, 1], 3, guard) == 1


@pytest.mark.parametrize(
    ("tokens", "run"),
    [
        ([1, 2, 1, 2, 1, 2], 2),
        ([1, 2, 3, 1, 2, 3, 1, 2], None),
        ([9, 1, 2, 3, 1, 2, 3, 1, 2, 3], 3),
        ([1, 2, 2, 1, 2, 2, 1, 2, 3], None),
        ([], None),
    ],
)
def test_runs(tokens: list[int], run: int | None) -> None:
    assert repeated_run(tokens, len(tokens), RepetitionGuard(max_run=4, times=3)) == run


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 1), max_size=24), st.integers(1, 5), st.integers(2, 4))
def test_the_guard_is_its_definition(tokens: list[int], max_run: int, times: int) -> None:
    expected = None
    for run in range(max_run, 0, -1):
        tail = tokens[-run * times :]
        if len(tail) == run * times and tail == tail[:run] * times:
            expected = run
    assert repeated_run(tokens, len(tokens), RepetitionGuard(max_run, times)) == expected
