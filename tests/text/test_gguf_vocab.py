"""Owns: GGUF vocabularies against independent ways to the same ids. May not know: templates.
Read next: `text/gguf_vocab.py`."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import CheckpointError, FirsthandError, UnsupportedModel
from firsthand.text.gguf_vocab import PRE_TOKENIZERS
from firsthand.text.tokenizer import Tokenizer
from firsthand.text.vocabulary import byte_alphabet

CORPUS = [
    "The quick brown fox counts 1234 jars of blue glass; it's 3.14159 or 2024-06-01.",
    "今天天气很好，我们去公园散步。 2024年12月31日",
    "👩‍🚀 rocket 🚀 family 👨‍👩‍👧‍👦 flag 🇩🇪",
    "def f(x: int) -> str:\n    if x > 10:\n\treturn f'{x!r}'\n\n\n    return ''\n",
    "  leading, trailing and   runs     of    space   \n \n\n\t\t x",
    "naïve café Ça va? Ünïcödé ａｂｃ １２３ ①② Ⅷ ½",
    "WE'LL they'll I'd don't 'tis ''quoted'' \u2019s",
    "a  1  22   333 4444\r\n\r\nend",
    "مرحبا بالعالم नमस्ते שלום สวัสดี",
    '<html><body class="x">&nbsp;</body></html> https://example.org/a?b=c#d',
]
TEXTS = st.text(
    alphabet=st.sampled_from(list("aZ'sdt  \n\r\t1234.,_-<|中あ🚀é\u0301\u200d½Ⅷ\u2019")),
    max_size=40,
)


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> Mapping[str, Any]:
    from firsthand.weights.gguf import open_gguf

    return open_gguf(smollm2_path).metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata)


class PlainBpe:
    """Byte-pair encoding as its definition has it: merge the best pair until none is left."""

    def __init__(self, metadata: Mapping[str, Any], patterns: tuple[str, ...]) -> None:
        import regex  # type: ignore[import-untyped]

        merges = metadata["tokenizer.ggml.merges"]
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.ids = {text: id_ for id_, text in enumerate(metadata["tokenizer.ggml.tokens"])}
        self.letters = {byte: char for char, byte in byte_alphabet().items()}
        self.patterns = [regex.compile(pattern) for pattern in patterns]
        self.word = lru_cache(maxsize=None)(self.word_ids)

    def encode(self, text: str) -> list[int]:
        words = [text]
        for pattern in self.patterns:
            words = [part for word in words for part in cut(pattern, word)]
        return [id_ for word in words for id_ in self.word(word)]

    def word_ids(self, word: str) -> list[int]:
        symbols = [self.letters[byte] for byte in word.encode()]
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, 10**9))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            symbols[at : at + 2] = ["".join(best)]
        return [self.ids[symbol] for symbol in symbols if symbol in self.ids]


def cut(pattern: Any, text: str) -> Iterator[str]:
    end = 0
    for match in pattern.finditer(text):
        if match.start() > end:
            yield text[end : match.start()]
        if match.group():
            yield match.group()
        end = match.end()
    if end < len(text):
        yield text[end:]


# The pre-tokenizers once more, as the models' own tokenizer.json files spell them.
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
INDEPENDENT = {
    "smollm": (r"\p{N}", GPT2),
    "gpt-2": (GPT2,),
    "llama-bpe": (LLAMA3,),
    "deepseek-r1-qwen": (LLAMA3.replace("{1,3}", ""),),
}


@pytest.mark.oracle
@pytest.mark.model
@pytest.mark.parametrize("name", INDEPENDENT)
def test_ids_equal_the_definition(smollm2_metadata: Mapping[str, Any], name: str) -> None:
    metadata = {**smollm2_metadata, "tokenizer.ggml.pre": name}
    ours, plain = Tokenizer.from_gguf(metadata), PlainBpe(metadata, INDEPENDENT[name])

    @settings(deadline=None, max_examples=150)
    @given(text=TEXTS)
    def check(text: str) -> None:
        assert ours.encode(text, add_bos=False) == plain.encode(text), text

    check()
    for text in CORPUS:
        assert ours.encode(text, add_bos=False) == plain.encode(text), text


@pytest.mark.oracle
@pytest.mark.model
def test_ids_and_texts_equal_transformers(smollm2: Tokenizer, smollm2_path: Path) -> None:
    """It reads the same file, but does not cut before each digit as the model's own tokenizer
    does: with spaces before a digit, or digits outside ASCII, it differs; those are left out."""
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    for text in CORPUS:
        if "  1" in text or any(char.isnumeric() and not char.isascii() for char in text):
            continue
        ids = reference(text, add_special_tokens=False)["input_ids"]
        assert smollm2.encode(text) == ids, text
        assert smollm2.decode(ids) == reference.decode(ids, skip_special_tokens=True) == text
    ends = [reference.eos_token_id]
    assert set(ends) <= smollm2.end_ids
    assert smollm2.bos_id == reference.bos_token_id


@pytest.mark.oracle
@pytest.mark.model
@pytest.mark.slow
def test_gemma_3_equals_transformers(gemma3_path: Path) -> None:
    from transformers import AutoTokenizer

    from firsthand.weights.gguf import open_gguf

    ours = Tokenizer.from_gguf(open_gguf(gemma3_path).metadata)
    reference = AutoTokenizer.from_pretrained(str(gemma3_path.parent), gguf_file=gemma3_path.name)
    for text in CORPUS:
        ids = ours.encode(text, add_bos=False)
        assert ids == reference(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ids) == text
    assert ours.add_bos and ours.encode("hi")[0] == ours.bos_id
    turn = ours.encode("<start_of_turn>user", special=True, add_bos=False)
    assert turn[0] in ours.special_ids
    assert ours.special_ids.isdisjoint(ours.encode("<start_of_turn>", add_bos=False))


@pytest.mark.model
@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(0, 49_151), max_size=40))
def test_stream_1_any_ids_of_the_real_vocabulary(smollm2: Tokenizer, ids: list[int]) -> None:
    data = b"".join(smollm2.token_bytes(id_, skip_special=True) for id_ in ids)
    assert smollm2.decode(ids) == data.decode("utf-8", "replace")


@pytest.mark.oracle
@pytest.mark.model
def test_the_bytes_of_all_tokens_equal_the_library(
    smollm2: Tokenizer, smollm2_metadata: Mapping[str, Any]
) -> None:
    from tokenizers import decoders

    decoder = decoders.ByteLevel()
    for token_id, piece in enumerate(smollm2_metadata["tokenizer.ggml.tokens"]):
        assert smollm2.token_bytes(token_id).decode("utf-8", "replace") == decoder.decode([piece])


@pytest.mark.model
def test_prompt_4_smollm2_control_tokens(smollm2: Tokenizer) -> None:
    for token_id in sorted(smollm2.special_ids):
        text = smollm2.token_bytes(token_id).decode("utf-8", "replace")
        ids = smollm2.encode(f"a{text}b")
        assert smollm2.special_ids.isdisjoint(ids) and smollm2.decode(ids) == f"a{text}b"
        assert token_id in smollm2.encode(f"a{text}b", special=True)


@pytest.mark.model
@pytest.mark.parametrize("unit", ["a", " ", "中", "word and ", "🚀", "\n"])
def test_tok_3_time_is_linear(smollm2: Tokenizer, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    started = time.perf_counter()
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == text
    assert time.perf_counter() - started < 2.0


# --- SentencePiece ---------------------------------------------------------------------------

SENTENCES = (
    "The quick brown fox counts 1234 jars of blue glass. def f(x):\n return x + 1 "
    "今天天气很好，我们去公园。 Ça va, naïve café? 日本語 text aaaa abab "
) * 5
PARTS = ["the ", "quick", "aaaa", "ab", " ", "  ", "\n", "今天", "🚀", "é", "x", "q", "1", "23"]
SYMBOLS = ["<think>", "<s>", "<ctl>", "café", "日本", "\x00", "\ufffd"]
SPM_TEXTS = st.lists(st.sampled_from(PARTS + SYMBOLS), max_size=12).map("".join)


def train(prefix: bool) -> Any:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([SENTENCES] * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        user_defined_symbols=["<think>", "▁▁", "▁▁▁"],
        control_symbols=["<ctl>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def spm_metadata(model: Any, prefix: bool) -> dict[str, Any]:
    def kind(id_: int) -> int:
        if model.id_to_piece(id_) in ("<think>", "▁▁", "▁▁▁"):
            return 4
        tests = {2: model.is_unknown, 3: model.is_control, 6: model.is_byte, 5: model.is_unused}
        return next((number for number, test in tests.items() if test(id_)), 1)

    ids = range(model.get_piece_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(id_) for id_ in ids],
        "tokenizer.ggml.scores": [model.get_score(id_) for id_ in ids],
        "tokenizer.ggml.token_type": [kind(id_) for id_ in ids],
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
    }


@pytest.mark.oracle
@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids_and_texts(prefix: bool) -> None:
    model = train(prefix)
    ours = Tokenizer.from_gguf(spm_metadata(model, prefix))

    @settings(deadline=None, max_examples=300)
    @given(text=SPM_TEXTS)
    def check(text: str) -> None:
        ids = model.encode(text)
        assert ours.encode(text, add_bos=False) == ids, text
        assert ours.decode(ids) == model.decode(ids)

    check()
    assert ours.encode("hi")[0] == model.bos_id()
    assert ours.end_ids == {model.eos_id()}


@pytest.mark.oracle
def test_sentencepiece_hides_control_tokens() -> None:
    model = train(True)
    ours = Tokenizer.from_gguf(spm_metadata(model, True))
    ids = [model.bos_id(), *model.encode("the jar"), model.eos_id()]
    assert ours.decode(ids) == "the jar"
    assert ours.decode(ids, skip_special=False) == "<s> the jar</s>"
    marked = ours.encode("<s>the jar</s>", special=True)
    assert marked == ids


# --- Damaged metadata ------------------------------------------------------------------------


def tiny() -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>", "</s>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 4,
    }


def test_tiny() -> None:
    tokenizer = Tokenizer.from_gguf(tiny())
    assert tokenizer.encode("abba<s>") == [2, 1, 0]  # the vocabulary cannot spell the rest
    assert tokenizer.bos_id is None and tokenizer.end_ids == {4} and not tokenizer.add_bos


DAMAGED: dict[str, dict[str, Any]] = {
    "no tokens": {"tokens": None},
    "tokens are numbers": {"tokens": [1, 2, 3, 4, 5]},
    "token twice": {"tokens": ["a", "b", "ab", "a", "</s>"]},
    "token is very long": {"tokens": ["a", "b", "ab", "<s>", "x" * 2000]},
    "half a surrogate": {"tokens": ["a", "b", "ab", "\ud800", "</s>"]},
    "too few kinds": {"token_type": [1, 1]},
    "kind 9": {"token_type": [1, 1, 1, 3, 9]},
    "kind is a list": {"token_type": [1, 1, 1, 3, [1]]},
    "no merges": {"merges": None},
    "merge of one": {"merges": ["ab"]},
    "merge with an empty piece": {"merges": [" a"]},
    "merge with a control token": {"merges": ["a <s>"]},
    "merge without product": {"merges": ["b a"]},
    "merge is a number": {"merges": [7]},
    "eos outside": {"eos_token_id": 5},
    "eos negative": {"eos_token_id": -1},
    "eos is true": {"eos_token_id": True},
    "bos is a text": {"bos_token_id": "1"},
    "add_bos is a number": {"add_bos_token": 1},
    "byte token of wrong form": {"model": "llama", "token_type": [6, 1, 1, 3, 3]},
    "no scores": {"model": "llama"},
    "too few scores": {"model": "llama", "scores": [1.0]},
    "score is no number": {"model": "llama", "scores": [0.0, 0.0, 0.0, 0.0, float("nan")]},
    "score is a text": {"model": "llama", "scores": [0.0, 0.0, 0.0, 0.0, "x"]},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_s_6_damaged_metadata_is_refused(name: str) -> None:
    changes = {f"tokenizer.ggml.{key}": value for key, value in DAMAGED[name].items()}
    with pytest.raises(CheckpointError, match="tiny"):
        Tokenizer.from_gguf({**tiny(), **changes}, "tiny.gguf")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "t5"},
        {"model": None},
        {"pre": "not-known"},
        {"pre": 3},
        {"model": np.zeros(3)},
        {"model": ["gpt2", "llama"]},
        {"pre": np.zeros(3)},
        {"precompiled_charsmap": [1], "model": "llama"},
        {"precompiled_charsmap": np.array([1, 2], np.uint8), "model": "llama"},
        {"remove_extra_whitespaces": True, "model": "llama"},
    ],
)
def test_unknown_kinds_are_refused_by_name(changes: dict[str, Any]) -> None:
    metadata = tiny() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    name = {"model": "tokenizer model", "pre": "pre-tokenizer"}
    key = next(iter(changes))
    with pytest.raises(UnsupportedModel, match=name.get(key, key)):
        Tokenizer.from_gguf(metadata)


def scored() -> dict[str, Any]:
    return tiny() | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0] * 5}


def test_an_empty_charsmap_is_none() -> None:
    empty = {
        "tokenizer.ggml.precompiled_charsmap": np.zeros(0, np.uint8),
        "tokenizer.ggml.remove_extra_whitespaces": False,
    }
    assert Tokenizer.from_gguf(scored() | empty).vocab_size == 5


def test_scored_pieces_are_bounded() -> None:
    """A piece is cut at every character, so a vocabulary of long ones would take minutes."""
    long = scored() | {"tokenizer.ggml.tokens": ["a", "b", "ab", "<s>", "x" * 257]}
    long["tokenizer.ggml.token_type"] = [1, 1, 1, 3, 1]
    with pytest.raises(CheckpointError, match="256"):
        Tokenizer.from_gguf(long)
    many = [f"{number:0256d}" for number in range(32_000)]
    with pytest.raises(CheckpointError, match="8000000 characters"):
        Tokenizer.from_gguf(long | {"tokenizer.ggml.tokens": many})


WRONG: list[Any] = [
    None,
    1,
    -1,
    2**40,
    0.5,
    float("nan"),
    True,
    "",
    "x",
    "x" * 10**6,
    [],
    ["x"],
    [[]],
    [None],
]
WRONG += [[1, 2], [10**400] * 5, {}, b"x", np.zeros(0), np.zeros(5), np.ones(3, np.uint8)]
WRONG += [np.ones(5, np.bool_), np.full(5, np.nan), ["", "x", "y", "z", "\ud800"]]


@pytest.mark.parametrize("make", [tiny, scored])
def test_errors_are_ours_only(make: Callable[[], dict[str, Any]]) -> None:
    """Whatever one key holds, the error is one of our own, and short."""
    keys = {*scored(), "tokenizer.chat_template"}
    flags = ("add_space_prefix", "add_bos_token", "remove_extra_whitespaces")
    keys |= {f"tokenizer.ggml.{name}" for name in (*flags, "precompiled_charsmap", "pre")}
    keys |= {f"tokenizer.ggml.{role}_token_id" for role in ("bos", "eot", "unknown", "padding")}
    num_refused = 0
    for key in sorted(keys):
        for value in WRONG:
            try:
                Tokenizer.from_gguf(make() | {key: value}).encode("ab")
            except FirsthandError as error:
                num_refused += 1
                assert len(str(error)) < 400
    assert num_refused > 100


def test_a_file_without_pre_is_taken_as_gpt_2() -> None:
    assert PRE_TOKENIZERS["default"] == PRE_TOKENIZERS["gpt-2"]
    metadata = tiny()
    del metadata["tokenizer.ggml.pre"]
    assert Tokenizer.from_gguf(metadata).encode("ab") == [2]


def test_chat_template_is_checked() -> None:
    key = "tokenizer.chat_template"
    assert Tokenizer.from_gguf(tiny() | {key: "T"}).chat_template == "T"
    for template in (7, "x" * 1_000_001):
        with pytest.raises(CheckpointError, match="chat_template"):
            Tokenizer.from_gguf(tiny() | {key: template})
