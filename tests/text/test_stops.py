"""Owns: the tests of `text/stops.py`. May not know: tokens. Read next: that file."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import InvalidRequest
from firsthand.text.stops import MAX_STOP_CHARS, StopStrings, parse_stop

LETTERS = st.text(alphabet="ab", min_size=1, max_size=5)


def run(
    stops: list[str], pieces: list[str], *, include: bool = False
) -> tuple[list[str], str | None]:
    watch = StopStrings(stops, include=include)
    sent: list[str] = []
    for piece in pieces:
        text, found = watch.add(piece)
        sent.append(text)
        if found is not None:
            assert watch.finish() == ""
            return sent, found
    return [*sent, watch.finish()], None


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The rule, spelled out: (end, stop) of the match that ends first, the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


@settings(deadline=None, max_examples=500)
@given(
    stops=st.lists(LETTERS, max_size=4),
    pieces=st.lists(st.text(alphabet="abc", max_size=6), max_size=8),
    include=st.booleans(),
)
def test_stop_1_equals_a_search_in_the_whole_text(
    stops: list[str], pieces: list[str], include: bool
) -> None:
    text = "".join(pieces)
    sent, found = run(stops, pieces, include=include)
    match = first_match(text, stops)
    if match is None:
        assert (found, "".join(sent)) == (None, text)
    else:
        end, stop = match
        assert (found, "".join(sent)) == (stop, text[: end if include else end - len(stop)])


@settings(deadline=None, max_examples=300)
@given(stops=st.lists(LETTERS, min_size=1, max_size=4), text=st.text(alphabet="abc", max_size=12))
def test_holds_back_no_more_than_a_match_could_need(stops: list[str], text: str) -> None:
    watch = StopStrings(stops)
    sent = ""
    for end, char in enumerate(text, start=1):
        piece, found = watch.add(char)
        sent += piece
        if found is not None:
            return
        held = text[len(sent) : end]
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text[:end].endswith(stop[:n])),
            default=0,
        )
        assert len(held) == longest


def test_stop_1_the_stop_string_spans_tokens() -> None:
    pieces = ["alpha beta ", "HAL", "TNO", "W gamma"]
    assert run(["HALTNOW"], pieces) == (["alpha beta ", "", "", ""], "HALTNOW")
    assert "".join(run(["HALTNOW"], pieces, include=True)[0]) == "alpha beta HALTNOW"


def test_stop_2_what_was_held_arrives() -> None:
    assert run(["xyz!"], ["w", "xyz"]) == (["w", "", "xyz"], None)
    assert run(["xyz!"], ["wxyz", "xyz!"]) == (["w", "xyz"], "xyz!")


@pytest.mark.parametrize("value", ["", [""], [1], ["a"] * 5, 7, {"a": 1}, [None], True])
def test_stop_3_odd_forms_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_stop(value)
    assert caught.value.field == "stop"


def test_stop_3_no_stop() -> None:
    assert parse_stop(None) == parse_stop([]) == ()
    assert parse_stop("END") == ("END",)
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_stop_3_limit_of_length() -> None:
    assert parse_stop("x" * MAX_STOP_CHARS)
    with pytest.raises(InvalidRequest):
        parse_stop("x" * (MAX_STOP_CHARS + 1))


def test_text_after_the_end_is_dropped() -> None:
    watch = StopStrings(["b"])
    assert watch.add("abc") == ("a", "b")
    assert watch.add("more") == ("", "b")
    assert watch.finish() == ""


def test_linear_in_the_text() -> None:
    watch = StopStrings(["a" * 999 + "b"])
    started = time.perf_counter()
    for _ in range(500):
        watch.add("a" * 100)
    assert time.perf_counter() - started < 1.0
