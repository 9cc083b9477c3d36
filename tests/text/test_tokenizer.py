"""Owns: the tests of `text/tokenizer.py`. May not know: GGUF. Read next: `conftest.py`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import CheckpointError, InvalidRequest
from firsthand.text.tokenizer import RenderedPrompt, Tokenizer, native_faults

WriteFolder = Callable[..., Path]
ROUND_TRIPS = [
    "e\u0301 \u00e9 한 \u1112\u1161\u11ab",
    "one\r\ntwo\rthree\n",
    "\tcol\tumn\x00end",
    "👩‍🚀 and 👨‍👩‍👧‍👦",
    "\ufffd",
    " " * 10_000,
    "中文，标点。混合 English 和 123",
    " leading and trailing ",
    "<s> </s> <|im_start|>system<|im_end|><tool_call>",
]


@pytest.fixture(scope="module")
def tokenizer(byte_level_json: dict[str, Any], tmp_path_factory: Any) -> Tokenizer:
    folder = tmp_path_factory.mktemp("byte-level")
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_json), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("text", ROUND_TRIPS)
def test_tok_3_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60))
def test_tok_3_round_trip_of_any_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.special_ids.isdisjoint(ids)


@pytest.mark.parametrize("unit", ["a", "< ", " ", "<|im_"])
def test_tok_3_time_is_linear(tokenizer: Tokenizer, unit: str) -> None:
    started = time.perf_counter()
    tokenizer.encode(unit * (100_000 // len(unit)), special=True)
    assert time.perf_counter() - started < 2.0


@settings(deadline=None, max_examples=100)
@given(ids=st.lists(st.integers(0, 421), max_size=30))
def test_stream_1_stream_equals_one_shot_for_any_ids(tokenizer: Tokenizer, ids: list[int]) -> None:
    for skip in (True, False):
        data = b"".join(tokenizer.token_bytes(id_, skip_special=skip) for id_ in ids)
        assert tokenizer.decode(ids, skip_special=skip) == data.decode("utf-8", "replace")


def test_prompt_1_white_space_is_text(tokenizer: Tokenizer) -> None:
    for text in (" ", "\n\n", "\t"):
        ids = tokenizer.encode(text)
        assert ids and tokenizer.decode(ids) == text


def test_prompt_2_and_3_exactly_one_bos(write_folder: WriteFolder) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(config={"add_bos_token": True}))
    bos = tokenizer.bos_id
    assert tokenizer.encode("hi")[0] == bos
    assert tokenizer.encode("hi").count(tokenizer.bos_id or 0) == 1
    assert tokenizer.encode("<s>hi", special=True) == tokenizer.encode("hi")
    assert tokenizer.encode_rendered(RenderedPrompt("<s>hi")) == tokenizer.encode("hi")
    assert tokenizer.encode_rendered(RenderedPrompt("hi")) == tokenizer.encode("hi")
    assert tokenizer.encode("hi", add_bos=False) == tokenizer.encode("hi")[1:]
    typed = tokenizer.encode("<s>hi")  # a typed BOS stays text, behind the one BOS
    assert typed.count(bos or 0) == 1 and tokenizer.decode(typed) == "<s>hi"


def test_prompt_3_the_post_processor_says_bos(write_folder: WriteFolder) -> None:
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}]
    processor = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}

    def change(content: dict[str, Any]) -> None:
        content["post_processor"] = {"type": "Sequence", "processors": [processor]}

    assert Tokenizer.from_folder(write_folder(change)).add_bos
    assert not Tokenizer.from_folder(write_folder(change, {"add_bos_token": False})).add_bos
    assert not Tokenizer.from_folder(write_folder()).add_bos


def test_prompt_4_no_added_token_comes_from_plain_text(
    tokenizer: Tokenizer, byte_level_json: dict[str, Any]
) -> None:
    for entry in byte_level_json["added_tokens"]:
        text = entry["content"]
        ids = tokenizer.encode(f"a{text}b")
        assert tokenizer.decode(ids) == f"a{text}b"
        if not text.isspace():
            assert entry["id"] not in ids
        assert entry["id"] in tokenizer.encode(f"a{text}b", special=True)


def test_runs_of_spaces_that_were_added_are_text(tokenizer: Tokenizer) -> None:
    assert [
        tokenizer.token_bytes(id_).decode("utf-8", "replace") for id_ in tokenizer.encode("x   y")
    ] == ["x", "   ", "y"]


def test_s_23_a_guarded_control_text_stays_text(tokenizer: Tokenizer) -> None:
    guard = "\U000f0000"
    prompt = RenderedPrompt(f"<|im_start|>user <{guard}|im_end|> hi<|im_end|>", guard)
    assert prompt.text == "<|im_start|>user <|im_end|> hi<|im_end|>"
    ids = tokenizer.encode_rendered(prompt, add_bos=False)
    assert [id_ for id_ in ids if id_ in tokenizer.special_ids] == [ids[0], ids[-1]]
    assert tokenizer.decode(ids, skip_special=False) == prompt.text


def test_stop_4_end_ids_are_a_union(write_folder: WriteFolder) -> None:
    config = {"eos_token_id": 5, "text_config": {"eos_token_id": [3]}}
    folder = write_folder(generation_config={"eos_token_id": [7, 9]}, config_=config)
    (folder / "config_.json").rename(folder / "config.json")
    tokenizer = Tokenizer.from_folder(folder)
    declared = tokenizer.encode("</s>", special=True)
    turn_end = tokenizer.encode("<|im_end|>", special=True)
    assert tokenizer.end_ids == {7, 9, 5, 3, *declared, *turn_end}


@pytest.mark.oracle
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("side", ["lstrip", "rstrip", "single_word", None])
def test_tok_1_markers_as_the_reference(
    write_folder: WriteFolder, normalized: bool, side: str | None
) -> None:
    from tokenizers import Tokenizer as Reference

    def change(content: dict[str, Any]) -> None:
        for entry in content["added_tokens"]:
            entry["normalized"] = normalized
            if side is not None:
                entry[side] = True

    folder = write_folder(change)
    ours = Tokenizer.from_folder(folder)
    reference = Reference.from_file(str(folder / "tokenizer.json"))
    texts = ["k:<s>->", "<s>end", "a <s> b", "a<s>b", "<s>", "x  <|im_end|>\n\n<s> </s>", "<<s>>"]
    for text in texts:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=True, add_bos=False) == expected, text


def test_check_width(tokenizer: Tokenizer) -> None:
    tokenizer.check_width(tokenizer.vocab_size)
    tokenizer.check_width(tokenizer.vocab_size + 64)
    with pytest.raises(CheckpointError, match="logits"):
        tokenizer.check_width(tokenizer.vocab_size - 1)


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size, 10**9]) == ""
    with pytest.raises(InvalidRequest):
        tokenizer.decode([-1])


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    for special in (False, True):
        with pytest.raises(InvalidRequest, match="surrogate"):
            tokenizer.encode("a\ud83d", special=special)


def test_truncation_and_padding_of_the_file_are_not_used(write_folder: WriteFolder) -> None:
    def change(content: dict[str, Any]) -> None:
        content["truncation"] = {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        }

    tokenizer = Tokenizer.from_folder(write_folder(change))
    assert tokenizer.decode(tokenizer.encode("a long text stays")) == "a long text stays"


@pytest.mark.parametrize("text", [None, 5, b"x", [1], ["x"], {}, True])
def test_what_is_no_text_is_refused(tokenizer: Tokenizer, text: Any) -> None:
    for special in (False, True):
        with pytest.raises(InvalidRequest, match="must be a text"):
            tokenizer.encode(text, special=special)


def test_s_6_a_panic_of_the_library_becomes_our_error() -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    for fault in (panic("first line\nsecond"), RuntimeError("first line\nsecond")):
        expected = pytest.raises(CheckpointError, match=r"it failed: first line$")
        with expected, native_faults("a file", "it failed"):
            raise fault
    with pytest.raises(KeyboardInterrupt), native_faults("a file", "it failed"):
        raise KeyboardInterrupt


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60) | st.text(" \u2581a", max_size=60))
def test_a_text_has_at_least_min_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.min_tokens(text) <= len(tokenizer.encode(text))


def test_a_long_text_is_known_to_be_long_at_once(tokenizer: Tokenizer) -> None:
    started = time.perf_counter()
    assert tokenizer.min_tokens("a" * 10_000_000) > 100_000
    assert time.perf_counter() - started < 0.5
    assert tokenizer.min_tokens("") == 0
    assert tokenizer.min_tokens("\ud800" * 1000) > 0  # `encode` refuses it by name


def test_bytes_without_a_piece_do_not_count(write_folder: WriteFolder) -> None:
    """Some vocabularies lack the pieces of a few control characters, which are then dropped."""

    def without_a_byte(content: dict[str, Any]) -> None:
        model = content["model"]
        model["vocab"]["not spelled"] = model["vocab"].pop("\u0104")  # of the byte 4

    tokenizer = Tokenizer.from_folder(write_folder(without_a_byte))
    assert tokenizer.min_tokens("\x04" * 10_000) == len(tokenizer.encode("\x04" * 10_000)) == 0
    assert tokenizer.min_tokens("a" * 10_000) > 0


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "aaaa"}, "content": "b"}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
    ],
)
def test_what_may_drop_text_has_no_such_bound(
    write_folder: WriteFolder, change: dict[str, Any]
) -> None:
    folder = write_folder(lambda content: content.update(change))
    assert Tokenizer.from_folder(folder).min_tokens("a" * 10_000) == 0


def test_a_canonical_form_makes_the_bound_wider(
    write_folder: WriteFolder, tokenizer: Tokenizer
) -> None:
    folder = write_folder(lambda content: content.update({"normalizer": {"type": "NFC"}}))
    wider = Tokenizer.from_folder(folder)
    text = "\u212a" * 100
    assert 0 < wider.min_tokens(text) < tokenizer.min_tokens(text)
    assert wider.min_tokens(text) <= len(wider.encode(text))


def test_an_error_about_an_id_is_short(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest) as refused:
        tokenizer.token_bytes(-(10**5000))
    assert len(str(refused.value)) < 300
