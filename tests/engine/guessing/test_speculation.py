"""From guesses to tokens: exactly those are kept that plain decoding draws."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.engine.guessing.guesser import Asked
from firsthand.engine.guessing.payoff import Payoff
from firsthand.engine.guessing.speculation import Speculation, draws_of, kept
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw, Drawn, SequenceSlice, StepPlan

PLAIN = SamplingParams()
PENALTY = SamplingParams(repetition_penalty=1.2)


def piece(
    known: list[int], most: int = 4, sampling: SamplingParams = PLAIN, sequence_id: int = 0
) -> SequenceSlice:
    """A sequence in a step that draws its next token, with room for guesses."""
    draw = Draw(sampling, 7, len(known), known, 1, None, most)
    return SequenceSlice(sequence_id, (known[-1],), len(known) - 1, (0,), draw)


class Saying:
    """A guesser that says what it was told to say."""

    def __init__(self, *guesses: int, is_free: bool = True) -> None:
        self.guesses = guesses
        self.is_free = is_free
        self.num_asked = 0
        self.present: AbstractSet[int] = set()

    def guess(self, asked: Sequence[Asked]) -> list[tuple[int, ...]]:
        self.num_asked += 1
        return [self.guesses[: one.most] for one in asked]

    def forget(self, present: AbstractSet[int]) -> None:
        self.present = present


def step(speculation: Speculation, known: list[int], ms: float = 10.0, most: int = 4) -> int:
    """The guesses of one step of one sequence; `ms` for a plain one, a tenth more for each."""
    plan = speculation.extend(StepPlan((piece(known, most),), max_guesses=most))
    speculation.learn(1, ms * (1 + plan.max_guesses / 10))
    assert len(plan.slices[0].token_ids) == 1 + plan.max_guesses
    return plan.max_guesses


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_kept_are_the_draws_from_right_tokens_and_no_others(
    guesses: list[int], data: st.DataObject
) -> None:
    """A drawn token is a function of the tokens before it. What plain decoding draws one by one
    is what is kept, as far as the guesses were right, and one token more."""

    def draw_after(tokens: Sequence[int]) -> int:
        return hash((tuple(tokens), seed)) % 3

    seed, known = data.draw(st.integers()), [1, 2]
    guessed = piece(known, 6, PENALTY)
    guessed = guessed._replace(token_ids=(2, *guesses), num_guesses=len(guesses))
    rows = draws_of(guessed)
    assert [draw.position for _, draw in rows] == list(range(2, 3 + len(guesses)))
    assert [draw.num_guessed for _, draw in rows] == list(range(1 + len(guesses)))
    drawn = [Drawn(0, draw_after(draw.history)) for _, draw in rows]
    (outcome,) = kept([guessed], drawn)
    tokens = [outcome.token_id, *(one.token_id for one in outcome.then)]
    plain: list[int] = []
    for _ in tokens:
        plain.append(draw_after([*known, *plain]))
    assert tokens == plain
    assert tokens[:-1] == guesses[: len(tokens) - 1]
    assert len(tokens) == len(guesses) + 1 or tokens[-1] != guesses[len(tokens) - 1]


def test_an_error_counts_only_where_plain_decoding_comes_to_it() -> None:
    guessed = piece([1])._replace(token_ids=(1, 5, 6), num_guesses=2)
    broken = Drawn(0, -1, error="not finite")
    (outcome,) = kept([guessed], [Drawn(0, 5), broken, Drawn(0, 6)])
    assert [one.error for one in (outcome, *outcome.then)] == [None, "not finite"]
    (outcome,) = kept([guessed], [Drawn(0, 4), broken, broken])
    assert outcome.error is None and outcome.then == ()


def test_draws_without_a_penalty_copy_no_history() -> None:
    guessed = piece([1])._replace(token_ids=(1, 5), num_guesses=1)
    assert all(not draw.history for _, draw in draws_of(guessed))


def test_all_of_them_without_a_payoff_within_the_budget() -> None:
    speculation = Speculation(Saying(8, 9, 8, 9), None, lambda: 0.0)
    slices = tuple(piece([1, i], 4, sequence_id=i) for i in range(3))
    plan = speculation.extend(StepPlan(slices, max_guesses=7))
    assert plan.max_guesses == sum(one.num_guesses for one in plan.slices) == 7
    assert plan.slices[0].token_ids[1:] == (8, 9, 8, 9)[: plan.slices[0].num_guesses]


def test_free_guesses_are_judged_while_they_are_not_computed() -> None:
    """It starts by itself when the text begins to repeat, and stops when it no longer does."""
    speculation = Speculation(Saying(1, 1, 1, 1), Payoff(), lambda: 0.0)
    known = [0]
    counts = []
    for token in [0] * 30 + [1] * 12 + [0] * 40:
        counts.append(step(speculation, known))
        known.append(token)
    assert sum(counts[8:30]) == 0, "wrong every time"
    assert min(counts[36:42]) == 4, "right every time"
    assert sum(counts[56:]) == 0


def test_free_guesses_of_a_new_sequence_are_not_trusted_before_one_was_right() -> None:
    """However often those of other sequences were."""
    speculation = Speculation(Saying(1, 1), Payoff(), lambda: 0.0)
    known = [1]
    for _ in range(20):
        step(speculation, known)
        known.append(1)
    counts = []
    for num_known in range(1, 6):
        plan = StepPlan((piece([1] * num_known, sequence_id=5),), max_guesses=4)
        counts.append(speculation.extend(plan).max_guesses)
        speculation.learn(1, 15.0 if counts[-1] else 10.0)
    assert counts[0] < 2 == counts[-1]


def test_who_costs_rests_and_is_tried_again_ever_more_rarely() -> None:
    guesser = Saying(1, 1, 1, 1, is_free=False)
    speculation = Speculation(guesser, Payoff(), lambda: 0.0)
    known = [0]
    for _ in range(600):
        step(speculation, known)
        known.append(0)
    assert 3 <= guesser.num_asked <= 30
    asked = guesser.num_asked
    for _ in range(600):
        step(speculation, known)
        known.append(1)
    assert guesser.num_asked > asked + 60, "right again, it is asked in every step"


def test_a_guesser_that_fails_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Saying):
        def guess(self, asked: Sequence[Asked]) -> list[tuple[int, ...]]:
            raise RuntimeError("on purpose")

    speculation = Speculation(Failing(), None, lambda: 0.0)
    with caplog.at_level(logging.ERROR):
        assert step(speculation, [1]) == step(speculation, [1]) == 0
    assert len(caplog.records) == 1


def test_records_of_ended_sequences_are_dropped() -> None:
    guesser = Saying(1)
    speculation = Speculation(guesser, None, lambda: 0.0)
    step(speculation, [1])
    plan = StepPlan((piece([4], sequence_id=9),), max_guesses=1)
    speculation.extend(plan)
    assert guesser.present == {9}
