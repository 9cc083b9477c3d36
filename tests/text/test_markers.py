"""Owns: the tests of `text/markers.py`. May not know: files. Read next: `test_templates.py`."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firsthand.errors import InvalidRequest
from firsthand.text.markers import Guard, MarkerIndex
from firsthand.text.vocabulary import AddedToken, TokenKind

TEXTS = ["<s>", "</s>", "<s", "|", "aba"]
ALPHABET = "<s>/|ab "


def index(texts: list[str] = TEXTS) -> MarkerIndex:
    return MarkerIndex(AddedToken(i, t, TokenKind.CONTROL, False) for i, t in enumerate(texts))


def found(text: str, guard: str = "") -> list[str]:
    return [text[begin:end] for begin, end, _ in index().matches(text, guard)]


def test_leftmost_and_longest() -> None:
    assert found("x<s>y<s z</s>|ababa") == ["<s>", "<s", "</s>", "|", "aba"]
    assert found("nothing") == []
    assert list(index([]).matches("<s>")) == []


@settings(deadline=None, max_examples=500)
@given(
    written=st.lists(st.text(alphabet=ALPHABET, max_size=8), min_size=1, max_size=4),
    trim=st.booleans(),
)
@example(written=["< ", " s"], trim=True)
@example(written=["\n</", "\t s> "], trim=True)
def test_s_23_no_marker_survives_in_protected_strings_however_joined(
    written: list[str], trim: bool
) -> None:
    """Strings of at least two characters, side by side, trimmed or not, form no marker."""
    strings = [text for text in written if len(text) != 1]
    guard = Guard(index(), strings)
    protected = [guard.protect(text) for text in strings]
    assert [text.replace(guard.char, "") for text in protected] == strings
    joined = "".join(text.strip() if trim else text for text in protected)
    assert found(joined, guard.char) == []


def test_the_template_s_own_markers_stay() -> None:
    guard = Guard(index(), ["<s>"])
    assert found(f"<s>{guard.protect('<s> hi')}</s>", guard.char) == ["<s>", "</s>"]


def test_s_23_no_marker_out_of_a_template_s_text_and_a_user_s() -> None:
    controls = index(["<|end|>"])
    for cut in range(1, 7):
        theirs = "<|end|>"[cut:]
        guard = Guard(controls, [theirs])
        text = "<|end|>"[:cut] + guard.protect(theirs)
        assert list(controls.matches(text, guard.char)) == []


def test_clean_text_is_left_alone() -> None:
    guard = Guard(index(["<|im_end|>"]), [])
    for text in ("", "hello", "a < b", "x > y |", "<|im_en", "im_end"):
        expected = guard.protect(text).replace(guard.char, "")
        assert expected == text
    assert guard.protect("hello, a < b") == "hello, a < b"


def test_the_guard_occurs_nowhere_else() -> None:
    taken = [chr(0xF0000), "x" + chr(0xF0001)]
    assert Guard(index(), taken).char == chr(0xF0002)
    with pytest.raises(InvalidRequest):
        Guard(index(), ["".join(map(chr, range(0xF0000, 0xFFFFE)))])
