"""The keyword arguments of a generation."""

from __future__ import annotations

from typing import Any

import pytest

from firsthand.errors import InvalidRequest
from firsthand.generation.options import (
    DEFAULT_MAX_TOKENS,
    Options,
    check_names,
    fresh_seed,
    read_options,
)
from firsthand.request import Grammar, GrammarKind, RepetitionGuard, SamplingParams, StopRules

ENDS = frozenset({2, 3})


def test_the_defaults() -> None:
    checked = read_options({}, ENDS)
    assert checked.sampling == SamplingParams()
    assert checked.stop == StopRules(max_tokens=DEFAULT_MAX_TOKENS, end_token_ids=ENDS)
    assert (checked.stop_strings, checked.seed) == ((), None)


def test_stop_9_none_is_the_default_of_every_option() -> None:
    given: dict[str, Any] = dict.fromkeys(Options.__annotations__)
    assert read_options(given, ENDS) == read_options({}, ENDS)


def test_every_option_arrives() -> None:
    options: Options = {
        "max_tokens": 9,
        "min_tokens": 1,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "logit_bias": {5: -1.0},
        "logprobs": 2,
        "prompt_logprobs": 1,
        "seed": 0,
        "stop": "end",
        "stop_token_ids": [7],
        "ignore_end": True,
        "repetition_guard": True,
        "priority": "urgent",
        "tenant": "someone",
        "cache_salt": "salt",
        "adapter": "sql",
        "timeout_s": 2.5,
        "response_format": {"type": "text"},
        "grammar": {"regex": "a+"},
    }
    assert options.keys() == Options.__annotations__.keys()
    checked = read_options({**options, "n": 3}, ENDS)
    assert checked.sampling == SamplingParams(0.5, 4, 0.9, 0.1, 1.2, 0.3, 0.4, ((5, -1.0),), 2)
    assert checked.stop == StopRules(9, 1, ENDS, frozenset({7}), True, RepetitionGuard())
    assert checked.stop_strings == ("end",)
    assert (checked.seed, checked.n, checked.timeout_s) == (0, 3, 2.5)
    assert checked.prompt_logprobs == 1
    assert checked.grammar == Grammar(GrammarKind.REGEX, "a+")
    assert (checked.priority, checked.tenant, checked.cache_salt) == ("urgent", "someone", "salt")
    assert checked.adapter == "sql"


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("max_tokens", {"max_tokens": -1}),
        ("max_tokens", {"max_tokens": True}),
        ("seed", {"seed": True}),
        ("seed", {"seed": 1.0}),
        ("stop", {"stop": ""}),
        ("stop", {"stop": [""]}),
        ("stop", {"stop": [1]}),
        ("stop", {"stop": ["a"] * 5}),
        ("stop_token_ids", {"stop_token_ids": [True]}),
        ("stop_token_ids", {"stop_token_ids": "7"}),
        ("stop_token_ids", {"stop_token_ids": 7}),
        ("logit_bias", {"logit_bias": [(1, 2.0)]}),
        ("logit_bias", {"logit_bias": {"cat": -100}}),
        ("ignore_end", {"ignore_end": 1}),
        ("repetition_guard", {"repetition_guard": 3}),
        ("temperature", {"temperature": "1"}),
        ("n", {"n": 0}),
        ("n", {"n": 129}),
        ("n", {"n": True}),
        ("priority", {"priority": "high"}),
        ("priority", {"priority": 1}),
        ("tenant", {"tenant": 7}),
        ("tenant", {"tenant": "x" * 257}),
        ("cache_salt", {"cache_salt": b"salt"}),
        ("timeout_s", {"timeout_s": 0}),
        ("timeout_s", {"timeout_s": float("nan")}),
    ],
)
def test_stop_3_sample_9_bad_values_are_refused_by_name(
    field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_options(options, ENDS)
    assert refused.value.field == field


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'"):
        read_options({"temprature": 1}, ENDS)
    with pytest.raises(InvalidRequest, match="known are a, b"):
        check_names(["qqqq"], ["b", "a"])


def test_sample_8_fresh_seeds_differ() -> None:
    seeds = {fresh_seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**64 for seed in seeds)


HUGE: list[object] = [10**5000, "x" * 10**6, [[1] * 1000] * 1000]


@pytest.mark.parametrize("value", HUGE, ids=["int", "text", "list"])
@pytest.mark.parametrize("field", ["ignore_end", "repetition_guard"])
def test_a_refused_flag_is_shown_in_short(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field) as refused:
        read_options({field: value}, ENDS)
    assert len(str(refused.value)) < 300


def test_an_unknown_name_is_shown_in_short() -> None:
    with pytest.raises(InvalidRequest, match="no such option") as refused:
        check_names(["x" * 10**6], ["a", "b"])
    assert len(str(refused.value)) < 300
