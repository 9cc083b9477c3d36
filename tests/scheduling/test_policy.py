"""Whose turn it is, in numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import InvalidRequest
from firsthand.request import Priority
from firsthand.scheduling.policy import (
    CLASSES,
    OVERDUE,
    Policy,
    Turn,
    borrowers,
    class_index,
    expected_length,
    level,
    longest_wait_s,
    new_credits,
    next_turn,
)

SHARES = (8, 4, 1)
NO_CREDIT = (0.0, 0.0, 0.0)


def test_the_classes_from_the_highest_down() -> None:
    assert [class_index(priority) for priority in Priority] == [0, 1, 2]
    assert CLASSES == (Priority.URGENT, Priority.NORMAL, Priority.BACKGROUND)


@pytest.mark.parametrize(
    ("own", "waited", "risen_to"),
    [
        (0, 0.0, 0),
        (0, 9.9, 0),
        (0, 10.0, OVERDUE),
        (1, 9.9, 1),
        (1, 10.0, 0),
        (1, 20.0, OVERDUE),
        (2, 9.9, 2),
        (2, 19.9, 1),
        (2, 20.0, 0),
        (2, 29.9, 0),
        (2, 30.0, OVERDUE),
        (2, 1e9, OVERDUE),
        (1, -5.0, 1),
    ],
)
def test_s33_waiting_lifts_by_one_class_each_time(own: int, waited: float, risen_to: int) -> None:
    assert level(own, waited, ageing_s=10.0) == risen_to


@settings(deadline=None)
@given(st.integers(0, 2), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1e-3, 1e5))
def test_s33_nobody_falls_by_waiting_and_the_longest_wait_is_the_bound(
    own: int, earlier: float, later: float, ageing_s: float
) -> None:
    earlier, later = sorted((earlier, later))
    assert level(own, later, ageing_s) <= level(own, earlier, ageing_s) <= own
    assert (level(own, later, ageing_s) == OVERDUE) == (later >= longest_wait_s(own, ageing_s))


def test_the_order_of_the_rules() -> None:
    urgent, normal, background = Turn(0, 0, 9), Turn(1, 1, 5), Turn(2, 2, 1)
    turns = (background, normal, urgent)
    assert next_turn(turns, NO_CREDIT, SHARES) == 2  # the higher class
    assert next_turn(turns, (0.0, 0.0, 1.0), SHARES) == 0  # who is owed
    assert next_turn(turns, (0.0, 8.0, 1.0), SHARES) == 1  # owed more of its share
    assert next_turn(turns, (-1.0, -5.0, -9.0), SHARES) == 2  # what is lent is no debt
    overdue = (Turn(2, OVERDUE, 7), Turn(1, OVERDUE, 5), urgent)
    assert next_turn(overdue, (9.0, 0.0, 0.0), SHARES) == 1  # overdue, the earlier arrival
    risen = (Turn(2, 0, 1), urgent)
    assert next_turn(risen, NO_CREDIT, SHARES) == 0  # risen as high, and came earlier


def test_credits_are_the_difference_to_the_share() -> None:
    wants = (True, True, True)
    assert new_credits(NO_CREDIT, (13, 0, 0), wants, SHARES, 100) == [-5.0, 4.0, 1.0]
    assert new_credits((0.0, 0.0, 99.5), (13, 0, 0), wants, SHARES, 100)[2] == 100.0
    assert new_credits((-99.0, 0.0, 0.0), (13, 0, 0), wants, SHARES, 100)[0] == -100.0


def test_an_idle_class_lends_its_share_and_saves_nothing_up() -> None:
    wants = (False, False, True)
    assert new_credits((5.0, 5.0, 5.0), (0, 0, 10), wants, SHARES, 100) == [0.0, 0.0, 5.0]
    assert new_credits(NO_CREDIT, (9, 0, 0), (False, False, True), SHARES, 100) == [0.0, 0.0, 1.0]
    assert new_credits((1.0, 1.0, 1.0), (0, 0, 0), (False,) * 3, SHARES, 100) == [0.0, 0.0, 0.0]


def test_a_borrower_has_more_than_its_share() -> None:
    assert borrowers((0, 0, 16), (True, False, False), SHARES) == [False, False, True]
    assert borrowers((8, 0, 1), (True, False, True), SHARES) == [False, False, False]
    assert borrowers((9, 0, 1), (True, False, True), SHARES) == [True, False, False]
    assert borrowers((0, 0, 0), (False, False, False), SHARES) == [False, False, False]


COUNTS = st.lists(st.integers(0, 40), min_size=3, max_size=3)


@settings(deadline=None)
@given(
    st.lists(st.tuples(COUNTS, st.lists(st.booleans(), min_size=3, max_size=3)), max_size=30),
    st.integers(1, 64),
)
def test_nobody_is_owed_more_than_the_bound(
    steps: list[tuple[list[int], list[bool]]], bound: int
) -> None:
    credits = [0.0, 0.0, 0.0]
    for served, wants in steps:
        credits = new_credits(credits, served, wants, SHARES, bound)
        assert all(-bound <= credit <= bound for credit in credits)
        assert all(credit == 0 for credit, want in zip(credits, wants, strict=True) if not want)


def test_s34_each_class_that_wants_gets_its_share_whatever_the_prices() -> None:
    """Serve whoever is next a request of 1 … 5 tokens, ten thousand times."""
    credits, total = [0.0, 0.0, 0.0], [0, 0, 0]
    for number in range(10_000):
        turns = [Turn(index, index, 3 * number + index) for index in range(3)]
        chosen = next_turn(turns, credits, SHARES)
        served = [0, 0, 0]
        served[chosen] = 1 + number * 7 % 5
        total[chosen] += served[chosen]
        credits = new_credits(credits, served, (True,) * 3, SHARES, 64)
    for index, share in enumerate(SHARES):
        assert total[index] / sum(total) == pytest.approx(share / 13, abs=0.005)


def test_room_is_kept_for_some_new_tokens_or_for_all() -> None:
    assert expected_length(10, 100, 64) == 74
    assert expected_length(10, 50, 64) == 50
    assert expected_length(10, 100, None) == 100


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shares", (1, 0, 1)),
        ("ageing_s", 0.0),
        ("ageing_s", float("nan")),
        ("max_passed", -1),
        ("lookahead", 0),
        ("growth_tokens", -1),
        ("max_preemptions", 1.5),
        ("max_recomputed", 2.0),
    ],
)
def test_a_policy_out_of_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Policy(**{field: value})  # type: ignore[arg-type]
    assert refused.value.field == field
