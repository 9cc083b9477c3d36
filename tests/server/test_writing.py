"""The words of OpenAI's API."""

from __future__ import annotations

from firsthand.generation.completion import TokenLogprob
from firsthand.request import FinishReason
from firsthand.server.writing import Places, completion_logprobs, echo_logprobs, openai_reason


def entries(*tokens: bytes) -> list[TokenLogprob]:
    return [TokenLogprob(0, raw.decode("utf-8", "replace"), raw, -1.0) for raw in tokens]


def test_each_reason_has_its_openai_word() -> None:
    long = {reason for reason in FinishReason if openai_reason(reason) == "length"}
    assert long == {FinishReason.LENGTH, FinishReason.CONTEXT}
    assert {openai_reason(reason) for reason in FinishReason} == {"stop", "length"}


def test_a_token_is_placed_after_the_whole_characters_before_it() -> None:
    """Half a character is no place in a text: 🙂 in two tokens, twice, is a text of two."""
    raw = "🙂".encode()
    half = [raw[:2], raw[2:]]
    echoed = echo_logprobs("🙂🙂a", half[0], [None, *entries(half[1], *half, b"a")])
    assert echoed["text_offset"] == [0, 0, 1, 1, 2]
    places = Places(3)
    first = completion_logprobs(entries(half[0]), places)
    rest = completion_logprobs(entries(half[1], b"b", b"stop"), places, end=4)
    assert first is not None and rest is not None
    assert first["text_offset"] + rest["text_offset"] == [3, 3, 4, 4]


def test_what_stands_before_the_text_has_no_place_in_it() -> None:
    """A BOS, and the space that a SentencePiece vocabulary puts before a first word."""
    echoed = echo_logprobs("ab c", b"<s>", [None, *entries(b" ab", b" c")])
    assert echoed["text_offset"] == [0, 0, 2]
