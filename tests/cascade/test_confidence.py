"""The verdict is that of the whole window, in whatever pieces the tokens come, and never later."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.cascade.confidence import MEASURES, Hearing, Rule, judged, score_of
from firsthand.errors import InvalidRequest

LOGPROBS = st.lists(st.floats(-20, 0), max_size=24)
RULES = st.builds(
    Rule, st.sampled_from(MEASURES), st.integers(1, 12), st.floats(-12, 0) | st.just(inf)
)


def plainly(rule: Rule, logprobs: list[float]) -> bool:
    seen = logprobs[: rule.window]
    if not seen:
        return rule.least <= 0
    score = 0.0
    if rule.measure == "least":
        score = min(seen)
    else:
        for one in seen:
            score += one
        score /= len(seen)
    return score >= rule.least


@given(rule=RULES, logprobs=LOGPROBS, cuts=st.lists(st.integers(0, 24), max_size=6))
@settings(deadline=None, max_examples=200)
def test_pieces_do_not_matter(rule: Rule, logprobs: list[float], cuts: list[int]) -> None:
    whole = judged(rule, logprobs)
    assert whole.verdict is plainly(rule, logprobs)
    hearing, places = Hearing(rule), [0, *sorted(cuts), len(logprobs)]
    for start, end in pairwise(places):
        hearing.add(0, logprobs[start:end], ended=False)
    hearing.add(0, (), ended=True)
    assert (hearing.verdict, hearing.score) == (whole.verdict, whole.score)
    assert hearing.num_tokens == whole.num_tokens <= rule.window


def test_a_bad_beginning_is_known_early() -> None:
    assert judged(Rule("least", 16, -3.0), [-0.1, -5.0, *[-0.1] * 14]).num_tokens == 2
    assert judged(Rule("mean", 16, -1.0), [-9.0, -8.0, *[-0.1] * 14]).num_tokens == 2
    hearing = Hearing(Rule("mean", 4, -1.0))
    assert hearing.add(0, [-0.5, -0.5, -0.5], ended=False) is None, "a last one of −4 decides"
    assert hearing.add(0, [-4.0], ended=False) is False


def test_one_answer_that_is_not_kept_decides_for_all() -> None:
    rule = Rule("least", 2, -1.0)
    hearing = Hearing(rule, 3)
    assert hearing.add(0, [-0.1, -0.2], ended=False) is None
    assert hearing.add(2, [-0.3], ended=True) is None
    assert hearing.add(1, [-0.1, -2.0], ended=False) is False
    assert hearing.score == -2.0
    kept = Hearing(rule, 2)
    kept.add(1, [], ended=True)
    assert kept.add(0, [-0.5], ended=True) is True


def test_a_score_is_of_the_window_alone() -> None:
    assert score_of("mean", 2, [-1.0, -3.0, -100.0]) == -2.0
    assert score_of("least", 2, [-1.0, -3.0, -100.0]) == -3.0
    assert score_of("mean", 9, []) == 0.0


@pytest.mark.parametrize(("measure", "window"), [("most", 1), ("mean", 0), ("mean", 4097)])
def test_wrong_rules_are_refused(measure: str, window: int) -> None:
    with pytest.raises(InvalidRequest):
        Rule(measure, window, 0.0)
