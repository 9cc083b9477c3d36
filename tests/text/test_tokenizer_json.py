"""Owns: hostile and damaged model folders. May not know: encoding. Read next: `conftest.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import CheckpointError, FirsthandError, UnsupportedModel
from firsthand.text.tokenizer import Tokenizer

WriteFolder = Callable[..., Path]
Content = dict[str, Any]


def put(*path: Any, value: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        target: Any = content
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


def nested(depth: int) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        part = {"type": "Sequence", "normalizers": [part, part][: 1 if depth > 20 else 2]}
    return part


REGEX = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}
GROWTH = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
DAMAGED = {
    "no model": put("model", value=None),
    "vocabulary is a list": put("model", "vocab", value=["a"]),
    "negative id": put("model", "vocab", "a", value=-1),
    "id of 2^31": put("model", "vocab", "a", value=2**31),
    "id is true": put("model", "vocab", "a", value=True),
    "id is a float": put("model", "vocab", "a", value=1.0),
    "id twice": put("model", "vocab", "a", value=70),
    "empty piece": put("model", "vocab", "", value=600),
    "merges missing": put("model", "merges", value=None),
    "merge of one": put("model", "merges", value=[["a"]]),
    "merge cycle through an empty piece": put("model", "merges", value=[["", "a"]]),
    "merge cycle in old form": put("model", "merges", value=[" a"]),
    "merge of unknown pieces": put("model", "merges", value=[["a", "zzz"]]),
    "merge without product": put("model", "merges", value=[["7", "~"]]),
    "merge of numbers": put("model", "merges", value=[[1, 2]]),
    "unknown token missing": put("model", "unk_token", value="zzz"),
    "added tokens are a text": put("added_tokens", value="abc"),
    "added token is empty": put("added_tokens", 0, "content", value=""),
    "added token without text": put("added_tokens", 0, "content", value=None),
    "added token negative": put("added_tokens", 0, "id", value=-1),
    "added token of 2^31": put("added_tokens", 0, "id", value=2**31),
    "added id twice": put("added_tokens", 0, "id", value=1),
    "added text twice": put("added_tokens", 0, "content", value="</s>"),
    "added token is very long": put("added_tokens", 0, "content", value="x" * 2000),
    "repeats a repetition": put("normalizer", value=REGEX),
    "repetition in a split": put("pre_tokenizer", value=REGEX | {"type": "Split"}),
    "normalizer that grows": put("normalizer", value=GROWTH),
    "long prefix": put("normalizer", value={"type": "Prepend", "prepend": "x" * 1000}),
    "empty pattern": put("normalizer", value=GROWTH | {"pattern": {"String": ""}}),
    "many parts": put("normalizer", value=nested(8)),
    "part is a number": put("normalizer", value={"type": "Sequence", "normalizers": [3]}),
    "part with wrong fields": put("normalizer", value={"type": "Replace"}),
    "pattern that does not compile": put(
        "pre_tokenizer",
        value={
            "type": "Split",
            "pattern": {"Regex": "("},
            "behavior": "Isolated",
            "invert": False,
        },
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_s_6_damaged_file_is_refused(write_folder: WriteFolder, name: str) -> None:
    folder = write_folder(DAMAGED[name])
    started = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(folder)
    assert str(folder) in caught.value.file
    assert time.perf_counter() - started < 1.0


UNSUPPORTED = {
    "another model": put("model", "type", value="Unigram"),
    "dropout": put("model", "dropout", value=0.1),
    "word end mark": put("model", "end_of_word_suffix", value="</w>"),
    "precompiled charsmap": put("normalizer", value={"type": "Precompiled"}),
    "another pre-tokenizer": put("pre_tokenizer", value={"type": "BertPreTokenizer"}),
    "another decoder": put("decoder", value={"type": "WordPiece"}),
    "no decoder": put("decoder", value=None),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_we_do_not_compute_is_refused_by_name(write_folder: WriteFolder, name: str) -> None:
    with pytest.raises(UnsupportedModel):
        Tokenizer.from_folder(write_folder(UNSUPPORTED[name]))


@pytest.mark.parametrize("text", ['{"decoder":[}}}', "", "[]", "[" * 100_000, "\xff", "nul"])
def test_s_6_not_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.model"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("value", [-1, 2**31, "2", [1, "a"], True, [None]])
def test_end_ids_are_checked(write_folder: WriteFolder, value: Any) -> None:
    folder = write_folder(generation_config={"eos_token_id": value})
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        Tokenizer.from_folder(folder)


def test_s_6_exponential_pattern_ends_in_a_clean_refusal(write_folder: WriteFolder) -> None:
    """`(a|aa)+$` has no repetition inside a repetition, so the library's own limit must hold."""
    pattern = {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": "x"}
    tokenizer = Tokenizer.from_folder(write_folder(put("normalizer", value=pattern)))
    started = time.perf_counter()
    with pytest.raises(CheckpointError, match="failed on a text"):
        tokenizer.encode("a" * 30_000 + "b")
    assert time.perf_counter() - started < 1.5
    assert tokenizer.decode(tokenizer.encode("still works")) == "still works"


def test_templates_of_a_folder(write_folder: WriteFolder) -> None:
    assert Tokenizer.from_folder(write_folder()).chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert Tokenizer.from_folder(write_folder(config={"chat_template": named})).chat_template == "D"
    folder = write_folder(config={"chat_template": "C"})
    assert Tokenizer.from_folder(folder).chat_template == "C"
    (folder / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert Tokenizer.from_folder(folder).chat_template == "J"


def test_special_tokens_may_be_objects(write_folder: WriteFolder) -> None:
    config = {"bos_token": {"__type": "AddedToken", "content": "<s>"}}
    tokenizer = Tokenizer.from_folder(write_folder(config=config))
    assert tokenizer.special_texts["bos_token"] == "<s>"
    assert tokenizer.token_text(tokenizer.bos_id or 0) == "<s>"


def test_merges_never_spell_a_control_token(write_folder: WriteFolder) -> None:
    def change(content: Content) -> None:
        vocab = content["model"]["vocab"]
        vocab |= {"<s": 500, "s>": 501}
        content["model"]["merges"] = [["<", "s"], ["<s", ">"]]
        content["pre_tokenizer"]["use_regex"] = False

    tokenizer = Tokenizer.from_folder(write_folder(change))
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("a<s>b"))


def test_errors_are_ours_only(write_folder: WriteFolder) -> None:
    """Whatever one value of the file is replaced by, the error is one of our own."""
    values: list[Any] = [None, 1, "x", [], {}, [[]], {"type": "Sequence"}, -1.5, True]
    for value in values:
        for key in ("model", "normalizer", "pre_tokenizer", "decoder", "added_tokens"):
            try:
                Tokenizer.from_folder(write_folder(put(key, value=value)))
            except FirsthandError:
                continue
