"""Prompts whose answer belongs between two texts.

Owns: which vocabularies have the markers, and that nobody's text becomes one.
May not know: the route. Read next: `tests/server/test_infill.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import CheckpointError, InvalidRequest
from firsthand.text.tokenizer import Infill, Tokenizer

WriteFolder = Callable[..., Path]
FIRST = 500
NAMED = [
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
]


def with_markers(texts: tuple[str, ...]) -> Callable[[dict[str, Any]], None]:
    """As Qwen's file has them: added, and not said to be special."""

    def change(content: dict[str, Any]) -> None:
        for number, text in enumerate(texts):
            marker = {"id": FIRST + number, "content": text, "special": False}
            content["added_tokens"].append(marker)

    return change


@pytest.mark.parametrize("texts", NAMED, ids=[texts[0] for texts in NAMED])
def test_the_vocabularies_that_have_the_markers(
    write_folder: WriteFolder, texts: tuple[str, str, str]
) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(with_markers(texts)))
    before, after = "def f(x):\n    ", "\n    return x"
    middle = [*tokenizer.encode(before, add_bos=False), FIRST + 1]
    ids = [FIRST, *middle, *tokenizer.encode(after, add_bos=False), FIRST + 2]
    assert tokenizer.encode_infill(Infill(before, after)) == ids
    bos_id = tokenizer.bos_id
    assert tokenizer.encode_infill(Infill(before, after), add_bos=True) == [bos_id, *ids]
    assert tokenizer.encode_infill(Infill("", "")) == [FIRST, FIRST + 1, FIRST + 2]
    assert tokenizer.decode(ids) == before + after


@pytest.mark.parametrize("texts", NAMED, ids=[texts[0] for texts in NAMED])
def test_nobodys_text_becomes_a_marker(
    write_folder: WriteFolder, texts: tuple[str, str, str]
) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(with_markers(texts)))
    typed = "".join(texts) + texts[0].replace("▁", " ")
    ids = tokenizer.encode_infill(Infill(typed, typed))
    assert [id_ for id_ in ids if id_ >= FIRST] == [FIRST, FIRST + 1, FIRST + 2]
    assert max(tokenizer.encode(typed)) < FIRST


@pytest.mark.parametrize("texts", [(), NAMED[0][:2], (NAMED[0][0], NAMED[1][1], NAMED[1][2])])
def test_a_vocabulary_without_them_is_refused(
    write_folder: WriteFolder, texts: tuple[str, ...]
) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(with_markers(texts)))
    with pytest.raises(InvalidRequest, match="no tokens for filling in") as caught:
        tokenizer.encode_infill(Infill("a", "b"))
    assert caught.value.field == "suffix"


def test_half_a_surrogate_is_told_of_the_suffix(write_folder: WriteFolder) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(with_markers(NAMED[0])))
    with pytest.raises(InvalidRequest, match="surrogate") as caught:
        tokenizer.encode_infill(Infill("a", "\ud800"))
    assert caught.value.field == "suffix"


PIECES = ["<unk>", "▁", "<", "P", ">", "<P", "▁<P", "▁<P>", "▁<S>", "▁<M>", "a", "▁a"]


def scored(**keys: int) -> dict[str, Any]:
    """A SentencePiece vocabulary whose markers are normal pieces that merges lead to."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": PIECES,
        "tokenizer.ggml.scores": [float(index) for index in range(len(PIECES))],
        "tokenizer.ggml.token_type": [2, *[1] * (len(PIECES) - 1)],
        **{f"tokenizer.ggml.{role}_token_id": id_ for role, id_ in keys.items()},
    }


@pytest.mark.parametrize(
    "roles", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_the_keys_of_gguf(roles: tuple[str, str, str]) -> None:
    """What a key names is a marker from then on, whatever its kind; what follows the gap goes on,
    without the space that a text begins with."""
    assert Tokenizer.from_gguf(scored()).encode("<P>") == [7]
    tokenizer = Tokenizer.from_gguf(scored(**dict(zip(roles, (7, 8, 9), strict=True))))
    assert tokenizer.encode("<P>") == [6, 4]
    assert tokenizer.encode_infill(Infill("a<P>", "a")) == [7, 11, 5, 4, 8, 10, 9]


def test_keys_that_name_no_three_tokens() -> None:
    for keys in ({"fim_pre": 7, "fim_suf": 8}, {"fim_pre": 7, "fim_suf": 8, "fim_mid": 8}):
        tokenizer = Tokenizer.from_gguf(scored(**keys))
        assert tokenizer.encode("<P>") == [7]
        with pytest.raises(InvalidRequest, match="filling in"):
            tokenizer.encode_infill(Infill("a", "a"))
    with pytest.raises(CheckpointError, match="fim_mid_token_id is 12; there are 12 tokens"):
        Tokenizer.from_gguf(scored(fim_mid=12, fim_pre=7, fim_suf=8))
