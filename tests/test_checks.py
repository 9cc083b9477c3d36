"""What counts as an integer, a number, one of a few words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from firsthand.checks import check_choice, check_integer, check_number, is_integer
from firsthand.errors import InvalidRequest


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, [1]])
def test_what_is_no_integer(value: Any) -> None:
    assert not is_integer(value)
    with pytest.raises(InvalidRequest, match=r"^x: must be an integer"):
        check_integer("x", value, 0)


def test_the_ends_of_a_range_belong_to_it() -> None:
    for value in (2, 3, 5):
        check_integer("x", value, 2, 5)
    check_integer("x", 10**30, 2)
    for value in (1, 6):
        with pytest.raises(InvalidRequest, match="at least 2 and at most 5, not"):
            check_integer("x", value, 2, 5)
    with pytest.raises(InvalidRequest, match=r"at least 2, not 1$"):
        check_integer("x", 1, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 1.1, 10**400, -(10**400)])
def test_what_is_outside_a_range_of_numbers(value: float) -> None:
    """Also a whole number too large for a float, which JSON may hold."""
    with pytest.raises(InvalidRequest, match="at least 0 and at most 1") as caught:
        check_number("x", value, 0.0, 1.0)
    assert len(str(caught.value)) < 120


def test_numbers() -> None:
    for value in (0, 0.0, 1, 0.5):
        check_number("x", value, 0.0, 1.0)
    with pytest.raises(InvalidRequest, match="above 0"):
        check_number("x", 0, 0.0, 1.0, low_open=True)
    for wrong in (True, "1", None):
        with pytest.raises(InvalidRequest, match="must be a number"):
            check_number("x", wrong, 0.0, 1.0)


def test_one_of_a_few_words() -> None:
    check_choice("x", "a", ("a", "b"))
    with pytest.raises(InvalidRequest, match="x: must be one of a, b, not 'c'"):
        check_choice("x", "c", ("a", "b"))


HUGE: list[object] = [10**5000, -(10**5000), "x" * 10**6, [[1] * 1000] * 1000, None]


@pytest.mark.parametrize("value", HUGE, ids=["int", "negative", "text", "list", "none"])
def test_a_refusal_is_short_whatever_the_value(value: object) -> None:
    checks: list[Callable[[], None]] = [
        lambda: check_integer("field", value, 0, 9),
        lambda: check_number("field", value, 0, 9),
        lambda: check_choice("field", value, ("a", "b")),
    ]
    for check in checks:
        with pytest.raises(InvalidRequest, match="field") as caught:
            check()
        assert len(str(caught.value)) < 300
