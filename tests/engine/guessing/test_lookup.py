"""Prompt lookup: what it finds, and that it finds it however the text came."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.engine.guessing.guesser import Asked
from firsthand.engine.guessing.lookup import MAX_CANDIDATES, PromptLookup
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw

SAMPLING = SamplingParams()


def asked(known: Sequence[int], most: int = 4, sequence_id: int = 0) -> Asked:
    return Asked(sequence_id, Draw(SAMPLING, 0, len(known), known), most)


def guess(known: Sequence[int], least: int = 2, most: int = 4, count: int = 4) -> tuple[int, ...]:
    return PromptLookup(least, most).guess([asked(known, count)])[0]


def test_what_came_after_the_same_tokens() -> None:
    assert guess([1, 2, 3, 4, 5, 6, 9, 1, 2]) == (3, 4, 5, 6)


def test_nothing_where_nothing_agrees() -> None:
    assert guess([1, 2, 3, 4]) == guess([1]) == guess([], 1) == ()


def test_the_longest_run_wins_and_of_equals_the_latest() -> None:
    longer_first = [7, 1, 2, 50, 8, 1, 2, 60, 7, 1, 2]
    assert guess(longer_first, 2, 4, 1) == (50,)
    assert guess(longer_first, 2, 2, 1) == (60,), "no more than two are looked at"


def test_a_text_that_repeats_goes_on_in_itself() -> None:
    assert guess([5, 6, 7, 6, 7], 2, 4, 6) == (6, 7, 6, 7, 6, 7)
    assert guess([3, 3], 1, 4, 3) == (3, 3, 3)


def test_sequences_are_apart_and_forgotten() -> None:
    lookup = PromptLookup(1, 4)
    first, second = asked([1, 2, 1], 1, 0), asked([1, 5, 1], 1, 1)
    assert lookup.guess([first, second]) == [(2,), (5,)]
    lookup.forget({1})
    assert lookup.guess([asked([9, 4, 9], 1, 0)]) == [(4,)], "another text under the same id"


def slow(known: list[int], least: int, most: int) -> int | None:
    """The first token of the guess, found by looking everywhere."""
    found = []
    for end in range(least, len(known)):
        length = 0
        while length < min(most, end) and known[end - 1 - length] == known[-1 - length]:
            length += 1
        if length >= least:
            found.append((length, end))
    found = found[-MAX_CANDIDATES:]
    return known[max(found)[1]] if found else None


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(0, 3),
    st.data(),
)
def test_it_finds_what_looking_everywhere_finds(
    text: list[int], least: int, more: int, data: st.DataObject
) -> None:
    lookup, known = PromptLookup(least, least + more), list[int]()
    while len(known) < len(text):
        known += text[len(known) :][: data.draw(st.integers(1, 9))]
        (found,) = lookup.guess([asked(known)])
        assert found[:1] == (() if (one := slow(known, least, least + more)) is None else (one,))
        assert len(found) in (0, 4)
