"""Owns: hostile and damaged model folders. May not know: encoding. Read next: `conftest.py`."""

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firsthand.errors import CheckpointError, FirsthandError, UnsupportedModel
from firsthand.text.tokenizer import Tokenizer
from firsthand.text.tokenizer_json import vocabulary_from_folder

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
    "unknown token is a list": put("model", "unk_token", value=[]),
    "prefix is a list": put("normalizer", value={"type": "Prepend", "prepend": []}),
    "pattern is a text": put("normalizer", value=GROWTH | {"pattern": "a"}),
    "normalizer that grows": put("normalizer", value=GROWTH),
    "long prefix": put("normalizer", value={"type": "Prepend", "prepend": "x" * 1000}),
    "empty pattern": put("normalizer", value=GROWTH | {"pattern": {"String": ""}}),
    "many parts": put("normalizer", value=nested(8)),
    "part is a number": put("normalizer", value={"type": "Sequence", "normalizers": [3]}),
    "part with wrong fields": put("normalizer", value={"type": "Replace"}),
    "part without fields": put("normalizer", value={"type": "Strip"}),
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
    "decoder type is a list": put("decoder", value={"type": []}),
    "normalizer type is an object": put("normalizer", value={"type": {}}),
    "pre-tokenizer type is an object": put("pre_tokenizer", value={"type": {}}),
    "model type is a list": put("model", "type", value=["BPE"]),
    "repeats a repetition": put("normalizer", value=REGEX),
    "repetition in a split": put("pre_tokenizer", value=REGEX | {"type": "Split"}),
    "pattern that does not compile": put("normalizer", value=REGEX | {"pattern": {"Regex": "("}}),
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


@pytest.mark.parametrize("regex", ["(a|aa)+$", r"(?=(a+))b", r"(a)\1*b", "a{99999}", "a*a*b"])
def test_s_6_slow_patterns_are_refused(write_folder: WriteFolder, regex: str) -> None:
    pattern = {"type": "Replace", "pattern": {"Regex": regex}, "content": "x"}
    with pytest.raises(UnsupportedModel, match="pattern"):
        Tokenizer.from_folder(write_folder(put("normalizer", value=pattern)))


def test_s_6_a_pattern_that_passes_is_fast_enough(write_folder: WriteFolder) -> None:
    pattern = {"type": "Replace", "pattern": {"Regex": r"a*b+|\s+$"}, "content": "x"}
    tokenizer = Tokenizer.from_folder(write_folder(put("normalizer", value=pattern)))
    started = time.perf_counter()
    tokenizer.encode("a" * 5_000 + "c" + " " * 5_000 + "c")
    assert time.perf_counter() - started < 0.5  # 50 ms per kilobyte


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
    assert tokenizer.token_bytes(tokenizer.bos_id or 0).decode("utf-8", "replace") == "<s>"


def test_merges_never_spell_a_control_token(write_folder: WriteFolder) -> None:
    def change(content: Content) -> None:
        vocab = content["model"]["vocab"]
        vocab |= {"<s": 500, "s>": 501}
        content["model"]["merges"] = [["<", "s"], ["<s", ">"]]
        content["pre_tokenizer"]["use_regex"] = False

    tokenizer = Tokenizer.from_folder(write_folder(change))
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("a<s>b"))


FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
FILES += ["config.json", "generation_config.json", "chat_template.jinja"]


@pytest.mark.parametrize("name", FILES)
def test_s_6_a_fifo_or_a_folder_is_refused_at_once(write_folder: WriteFolder, name: str) -> None:
    folder = write_folder()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=f"{name}: is not a regular file"):
        Tokenizer.from_folder(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(CheckpointError, match=f"{name}: is not a regular file"):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("name", FILES)
def test_s_6_a_link_out_of_the_folder_is_refused(
    write_folder: WriteFolder, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = write_folder()
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        Tokenizer.from_folder(folder)


def test_links_of_the_hub_cache_are_followed(write_folder: WriteFolder, tmp_path: Path) -> None:
    write_folder()
    snapshot = tmp_path / "models--a--b" / "snapshots" / "c"
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).rename(blobs / name)
        (snapshot / name).symlink_to(blobs / name)
    assert Tokenizer.from_folder(snapshot).encode("a")


BOMBS = {
    "lists": "[],",
    "objects": "{},",
    "numbers": "1,",
}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("kind", BOMBS)
def test_s_6_many_small_values_are_refused_unread(
    write_folder: WriteFolder, name: str, kind: str
) -> None:
    folder = write_folder()
    (folder / name).write_text('{"a":[' + BOMBS[kind] * 3_100_000 + "1]}")
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="limit"):
            Tokenizer.from_folder(folder)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", FILES[:-1])
@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', '["a"]'])
def test_s_6_json_is_read_strictly(write_folder: WriteFolder, name: str, text: str) -> None:
    folder = write_folder()
    (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=name):
        Tokenizer.from_folder(folder)


def test_a_chat_template_that_is_no_text(write_folder: WriteFolder) -> None:
    folder = write_folder()
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="UTF-8"):
        Tokenizer.from_folder(folder)


def test_a_large_vocabulary_loads_fast(write_folder: WriteFolder) -> None:
    """As many pieces and merges as the largest models have, within the limit of items."""

    def change(content: Content) -> None:
        vocab = content["model"]["vocab"]
        merges = content["model"]["merges"] = [["a", "a"]] * 500_000
        vocab["aa"] = vocab.get("aa", 900)
        vocab |= {f"piece{number}": 1000 + number for number in range(262_144)}
        assert merges

    folder = write_folder(change)
    started = time.process_time()  # of this program alone: the machine may be busy
    vocabulary_from_folder(folder)
    assert time.process_time() - started < 5.0


LONG: list[Any] = [
    "x" * 1_000_000,
    list(range(100_000)),
    {"x" * 100_000: 1},
    [[[["x"] * 9] * 9] * 9],
]
PLACES = [
    ("model", "unk_token"),
    ("model", "type"),
    ("model", "dropout"),
    ("model", "vocab", "a"),
    ("added_tokens", 0, "id"),
    ("added_tokens", 0, "content"),
    ("decoder", "type"),
    ("normalizer",),
    ("pre_tokenizer", "type"),
]


@pytest.mark.parametrize("place", PLACES)
def test_messages_of_errors_are_bounded(write_folder: WriteFolder, place: tuple[Any, ...]) -> None:
    for value in LONG:
        with pytest.raises(FirsthandError) as caught:
            Tokenizer.from_folder(write_folder(put(*place, value=value)))
        assert len(str(caught.value)) < 700


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, but of a long list or object only the first few."""
    found = [here]
    items = list(value.items() if isinstance(value, dict) else enumerate(value))[:6]
    for key, item in items:
        found += places(item, (*here, key)) if isinstance(item, dict | list) else [(*here, key)]
    return found


WRONG: list[Any] = [
    None,
    1,
    -1,
    2**63,
    1.5,
    "",
    "x",
    [],
    {},
    [[]],
    [{}],
    {"type": []},
    {"type": {}},
    True,
]
COMPONENTS: Content = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
            {"type": "Prepend", "prepend": "_"},
            {"type": "Strip", "strip_left": True, "strip_right": False},
        ],
    },
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": "a+"},
                "behavior": "Isolated",
                "invert": False,
            },
            {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": False},
            {"type": "Digits", "individual_digits": True},
        ],
    },
    "post_processor": {
        "type": "Sequence",
        "processors": [{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}],
    },
}


def test_errors_are_ours_only(write_folder: WriteFolder, tmp_path: Path) -> None:
    """Whatever one value of a file is replaced by, the error is one of our own."""
    write_folder()
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text()) | COMPONENTS
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True}
    config |= {"chat_template": [{"name": "default", "template": "T"}]}
    companions: dict[str, Content] = {
        "tokenizer_config.json": config,
        "special_tokens_map.json": {"unk_token": {"content": "<unk>"}},
        "config.json": {"eos_token_id": 1, "text_config": {"eos_token_id": [1]}},
        "generation_config.json": {"eos_token_id": [1]},
    }
    files = {"tokenizer.json": tokenizer, **companions}
    chooser = random.Random(7)
    num_refused = 0
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer.from_folder(tmp_path).encode("abc 12")
    for name, content in files.items():
        text = json.dumps(content)
        for place in places(content):
            for value in chooser.sample(WRONG, 5):
                changed: Any = json.loads(text)
                if place:
                    put(*place, value=value)(changed)
                else:
                    changed = value
                (tmp_path / name).write_text(json.dumps(changed))
                try:
                    Tokenizer.from_folder(tmp_path).encode("abc 12")
                except FirsthandError:
                    num_refused += 1
        (tmp_path / name).write_text(text)
    assert num_refused > 100
