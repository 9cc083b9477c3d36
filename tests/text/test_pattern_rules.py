"""Owns: the tests of the pattern rules. May not know: files. Read next: that module."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.text.gguf_vocab import PRE_TOKENIZERS
from firsthand.text.pattern_rules import pattern_refusal

REFUSED = {
    "repetition": ["(a+)+", "(a+)+$", "(?:a*)*", "((a+)b)*", "(?:x{3,})+", "([)]+)*", r"(\)+)+"],
    "choice": ["(a|aa)+$", "(?:a|aa){16}b", "(a+|b){2,}", "((a{16}){16}){16}", "(?:a?){9}"],
    "must match": ["a+b", "a*a*b", "a*b{2}", "(a+)b", "(a|b+)c", "a{2,}b", "a+(b)"],
    "unbounded": ["a*a*a*", "(a+)?(b+)?c+"],
    "ways": ["a?" * 20 + "a" * 20, "(a|a)" * 20, "a{0,16}" * 2],
    "escape": [r"(a)\1*b", r"(?:a)\k<1>", r"(a)\g<1>", r"\Qa\E", r"\K", "a\\"],
    "times": ["a{99999}", "a{17}", "a{,17}", "a{1,99}"],
    "look": ["(?=(a+))b", "(?=a*)b", "(?<!a+)b"],
    "condition": [r"a*b+(?!\S)", "a*b+$"],
    "group of a kind": ["(?>a)", "(?<x>a)", "(?(1)a|b)", "(?~a)", "(*FAIL)", "(?x)a", "(?#c)"],
    "repeats": ["a**", "a{2}{3}", "a+{2}", "a{1,2}+", "*", "?", r"\b*", "(?=a)+"],
    "too many": ["(", ")(", "a)", "(?:a"],
    "class": ["[]a]", "[^]a]", "[a", "[[]a]"],
    "deep": ["(" * 20 + "a" + ")" * 20],
    "over 4000": ["a" * 4001],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_s_6_refused_with_the_reason(reason: str) -> None:
    for regex in REFUSED[reason]:
        assert reason in (pattern_refusal(regex) or "passed"), regex


O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PASS = [
    O200K,
    DEEPSEEK,
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r" ?[^(\s|[.,!?…])]+",
    " {2,}",
    "[0-9][0-9][0-9]",
]
PASS += [
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
    r"[\p{Lu}&&[^\p{Han}]]*",
    "(a)",
    "(?:ab)+",
    "a{2}",
    "",
    "a++|b+?",
]
PASS += [r"\x{41}\p{L}{1,3}", "(a+)?", "[[a]+]+", "([+*])+", "a{,b}", r"(?<=a)b", r"\bx\B", "a{x}"]


@pytest.mark.parametrize("regex", PASS)
def test_what_tokenizers_use_passes(regex: str) -> None:
    assert pattern_refusal(regex) is None


def test_known_patterns_pass() -> None:
    for pre in PRE_TOKENIZERS.values():
        assert [pattern_refusal(pattern) for pattern in pre.patterns] == [None] * len(pre.patterns)


PARTS = ["a", "b", "a+", "a*", "a?", "b{1,3}", "|", "(", "(?:", ")", ")?", ")+", r"\p{L}", "[ab]"]
PARTS += ["(?!", "(?=", "$", "{2,}", "+", "?", "a{0,16}"]


@settings(deadline=None, max_examples=150)
@given(regex=st.lists(st.sampled_from(PARTS), min_size=1, max_size=12).map("".join))
def test_s_6_whatever_passes_is_at_most_quadratic(regex: str) -> None:
    """A text of 1,000 characters costs less than a second, whichever pattern passed."""
    from tokenizers import Regex, pre_tokenizers

    if pattern_refusal(regex) is not None:
        return
    try:
        split = pre_tokenizers.Split(Regex(regex), "isolated")
    except Exception:  # the library finds more to refuse
        return
    started = time.perf_counter()
    split.pre_tokenize_str("a" * 1000)
    split.pre_tokenize_str("ab" * 500 + "c")
    assert time.perf_counter() - started < 1.0
