"""Owns: the tests of the pattern rule. May not know: files. Read next: `test_tokenizer_json.py`."""

from __future__ import annotations

import pytest

from firsthand.text.gguf_vocab import PRE_TOKENIZERS
from firsthand.text.pipeline_rules import has_nested_repetition


@pytest.mark.parametrize(
    "regex",
    ["(a+)+", "(a+)+$", "(?:a*)*", "((a+)b)*", "(a+|b){2,}", "(?:x{3,})+", "([)]+)*", r"(\)+)+"],
)
def test_s_6_nested(regex: str) -> None:
    assert has_nested_repetition(regex)


@pytest.mark.parametrize(
    "regex",
    ["a+b*", "(ab)+", "(a+)?", "(a+){1,3}", r"(\+)+", "([+*])+", "(a)+(b)+", "[[a]+]+", ")(", ""],
)
def test_not_nested(regex: str) -> None:
    assert not has_nested_repetition(regex)


def test_known_patterns_pass() -> None:
    for pre in PRE_TOKENIZERS.values():
        assert not any(has_nested_repetition(pattern) for pattern in pre.patterns)
