"""What a request may hold, and what it refuses by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from firsthand.errors import InvalidRequest
from firsthand.request import (
    RepetitionGuard,
    Request,
    SamplingParams,
    StopRules,
    Usage,
)


def request(prompt: tuple[int, ...] = (1,), seed: int = 0) -> Request:
    return Request("r", prompt, SamplingParams(), StopRules(max_tokens=1), seed)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("temperature", lambda: SamplingParams(temperature=-0.1)),
        ("temperature", lambda: SamplingParams(temperature=math.nan)),
        ("temperature", lambda: SamplingParams(temperature=True)),
        ("top_k", lambda: SamplingParams(top_k=-1)),
        ("top_k", lambda: SamplingParams(top_k=1.5)),  # type: ignore[arg-type]
        ("top_p", lambda: SamplingParams(top_p=0.0)),
        ("top_p", lambda: SamplingParams(top_p=1.01)),
        ("min_p", lambda: SamplingParams(min_p=-0.01)),
        ("repetition_penalty", lambda: SamplingParams(repetition_penalty=0.0)),
        ("presence_penalty", lambda: SamplingParams(presence_penalty=2.1)),
        ("frequency_penalty", lambda: SamplingParams(frequency_penalty=-math.inf)),
        ("logit_bias", lambda: SamplingParams(logit_bias=((5, 1000.0),))),
        ("logit_bias", lambda: SamplingParams(logit_bias=((5, math.nan),))),
        ("logit_bias", lambda: SamplingParams(logit_bias=((-1, 1.0),))),
        ("logit_bias", lambda: SamplingParams(logit_bias=((1, 1.0), (1, 2.0)))),
        ("logit_bias", lambda: SamplingParams(logit_bias=(("cat", 1.0),))),  # type: ignore[arg-type]
        ("logprobs", lambda: SamplingParams(logprobs=21)),
        ("max_tokens", lambda: StopRules(max_tokens=-1)),
        ("max_tokens", lambda: StopRules(max_tokens=True)),
        ("max_tokens", lambda: StopRules(max_tokens=10**18)),
        ("max_tokens", lambda: StopRules(max_tokens="10")),  # type: ignore[arg-type]
        ("max_tokens", lambda: StopRules(max_tokens=1.5)),  # type: ignore[arg-type]
        ("min_tokens", lambda: StopRules(max_tokens=2, min_tokens=3)),
        ("stop_token_ids", lambda: StopRules(max_tokens=1, stop_token_ids=frozenset({-1}))),
        ("stop_token_ids", lambda: StopRules(max_tokens=1, stop_token_ids=frozenset({10**12}))),
        ("stop_token_ids", lambda: StopRules(max_tokens=1, stop_token_ids=frozenset(range(65)))),
        ("repetition.max_run", lambda: RepetitionGuard(max_run=0)),
        ("repetition.times", lambda: RepetitionGuard(times=1)),
        ("prompt", lambda: request(prompt=())),
        ("seed", lambda: request(seed=-1)),
        ("seed", lambda: request(seed=2**64)),
    ],
)
def test_stop_9_sample_9_a_value_out_of_range_is_refused_by_its_name(
    field: str, make: Callable[[], object]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make()
    assert refused.value.field == field
    assert str(refused.value).startswith(field)


def test_the_edges_of_the_ranges_are_allowed() -> None:
    SamplingParams(temperature=0, top_p=1, min_p=1, presence_penalty=-2, logprobs=20)
    SamplingParams(temperature=5e-324)
    StopRules(max_tokens=2**31 - 1, min_tokens=2**31 - 1)
    assert request(seed=2**64 - 1).seed == 2**64 - 1


def test_only_penalties_need_the_history() -> None:
    assert not SamplingParams(temperature=0.5, top_k=3).needs_history
    assert SamplingParams(repetition_penalty=1.1).needs_history
    assert SamplingParams(presence_penalty=0.1).needs_history
    assert SamplingParams(frequency_penalty=-0.1).needs_history


def test_usage_adds_up() -> None:
    assert Usage(prompt_tokens=3, completion_tokens=4).total_tokens == 7
