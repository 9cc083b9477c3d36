"""Owns: the tests of `text/detokenize.py`. May not know: vocabularies. Read next: that file."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.text.detokenize import Detokenizer

HARD_TEXTS = st.text(alphabet="aé中龍🚀👩‍🚀e\u0301\ufffd\x00 \n\u00a0", max_size=40)
PIECES = st.one_of(HARD_TEXTS.map(str.encode), st.binary(max_size=40))


def stream(tokens: Any, ids: list[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokens, **options)
    return [*(detokenizer.add(token_id) for token_id in ids), detokenizer.finish()]


class Pieces:
    """Token i is the i-th piece; token 0 is hidden."""

    def __init__(self, pieces: list[bytes], strip_first_space: bool = False) -> None:
        self.pieces = [b"<s>", *pieces]
        self.strip_first_space = strip_first_space

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        return b"" if skip_special and token_id == 0 else self.pieces[token_id]


@settings(deadline=None, max_examples=300)
@given(data=PIECES, cuts=st.lists(st.integers(0, 40), max_size=12))
def test_stream_1_any_cut_of_any_bytes_gives_the_same_text(data: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in pairwise(bounds)]
    parts = stream(Pieces(pieces), list(range(1, len(pieces) + 1)))
    assert "".join(parts) == data.decode("utf-8", "replace")


@settings(deadline=None, max_examples=100)
@given(text=HARD_TEXTS)
def test_s18_valid_text_byte_by_byte_never_shows_half_a_character(text: str) -> None:
    data = text.encode()
    pieces = [data[i : i + 1] for i in range(len(data))]
    parts = stream(Pieces(pieces), list(range(1, len(pieces) + 1)))
    assert [char for part in parts for char in part] == list(text)
    assert parts[-1] == ""


def test_stream_2_unfinished_character_then_space() -> None:
    assert stream(Pieces([b"\xe4\xb8", b" x"]), [1, 2]) == ["", "\ufffd x", ""]
    assert stream(Pieces([b"\xe4\xb8", b"\xad"]), [1, 2]) == ["", "中", ""]


def test_stream_3_end_in_the_middle_of_a_character() -> None:
    assert stream(Pieces([b"A", b"\xe9\xbe"]), [1, 2]) == ["A", "", "\ufffd"]


def test_stream_4_word_marks_keep_their_spaces() -> None:
    tokens = Pieces([b" blue", b" glass", b" jar"], strip_first_space=True)
    assert stream(tokens, [1, 2, 3]) == ["blue", " glass", " jar", ""]
    assert stream(tokens, [1, 2], continues=True) == [" blue", " glass", ""]


def test_tok_2_first_token_loses_only_its_first_space() -> None:
    tokens = Pieces([b" in a", b" box"], strip_first_space=True)
    assert "".join(stream(tokens, [1, 2])) == "in a box"


def test_first_space_goes_after_a_hidden_token_but_not_after_a_shown_one() -> None:
    tokens = Pieces([b"  hi"], strip_first_space=True)
    assert "".join(stream(tokens, [0, 1])) == " hi"
    assert "".join(stream(tokens, [0, 1], skip_special=False)) == "<s>  hi"
