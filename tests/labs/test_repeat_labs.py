"""What the labs of repetition compare. Read next: `labs/repeat_labs.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from firsthand.labs.repeat_labs import Compared

pytestmark = pytest.mark.native


def answer(token_ids: tuple[int, ...], *logprobs: float) -> Any:
    return SimpleNamespace(
        token_ids=token_ids, logprobs=tuple(SimpleNamespace(logprob=one) for one in logprobs)
    )


def compared(*pairs: tuple[Any, Any]) -> Compared:
    alone, together = zip(*pairs, strict=True)
    return Compared(alone, together)


def test_tokens_are_compared_while_a_text_is_the_same() -> None:
    one = (answer((1, 2, 3), -1.0, -2.0, -3.0), answer((1, 9, 9), -1.5, -2.0, -3.0))
    other = (answer((1, 2, 4), -1.0, -2.0, -3.0), answer((1, 2, 8), -1.25, -4.0, -3.0))
    assert compared(one, other).off == [0.5, 2.0]
    assert compared(one, other).num_other_texts == 2
    assert compared(one).off == [0.5]


def test_texts_that_differ_from_the_start_leave_nothing_to_compare() -> None:
    assert compared((answer((1,), -1.0), answer((2,), -1.0))).off == [0.0]
