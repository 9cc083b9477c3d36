"""What is refused before it can do harm."""

from __future__ import annotations

import pytest

from firsthand.errors import ContextLengthExceeded, InvalidRequest
from firsthand.request import Request, SamplingParams, StopRules
from firsthand.scheduling.limits import Limits, check_request, max_stored_tokens

LIMITS = Limits(vocab_size=10, context_length=64, max_sequences=2, max_step_tokens=8)


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def request(
    prompt: tuple[object, ...],
    stop: StopRules | None = None,
    sampling: SamplingParams | None = None,
) -> Request:
    return Request("r", prompt, sampling or SamplingParams(), stop or StopRules(1), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [64, 65])
def test_stop_7_stop_8_a_prompt_that_fills_the_context_is_refused(length: int) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        check_request(request((1,) * length), LIMITS)
    assert str(length) in str(refused.value)
    assert "64" in str(refused.value)


@pytest.mark.parametrize(("prompt", "new"), [(63, 1), (40, 24), (40, 25), (40, 1000)])
def test_stop_7_what_leaves_room_for_a_token_is_allowed(prompt: int, new: int) -> None:
    checked = request((1,) * prompt, StopRules(max_tokens=new))
    check_request(checked, LIMITS)
    assert max_stored_tokens(checked, LIMITS) == min(prompt + new, 64) - 1


@pytest.mark.parametrize("prompt", [(-1,), (10,), (2**40,), (1, "a"), (True,), (1.0,), (None,)])
def test_prompt_9_ids_outside_the_vocabulary_are_refused(prompt: tuple[object, ...]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_request(request(prompt), LIMITS)
    assert refused.value.field in ("prompt[0]", "prompt[1]")


def test_stop_5_a_stop_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"stop_token_ids: token id 10 is outside 0…9"):
        check_request(request((1,), StopRules(1, stop_token_ids=frozenset({10}))), LIMITS)


def test_sample_9_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="logit_bias: token id 99999"):
        check_request(request((1,), sampling=SamplingParams(logit_bias=((99999, 5.0),))), LIMITS)


def test_the_models_own_end_tokens_may_lie_outside() -> None:
    check_request(request((1,), StopRules(1, end_token_ids=frozenset({99}))), LIMITS)


@pytest.mark.parametrize("field", ["vocab_size", "context_length", "max_sequences"])
@pytest.mark.parametrize("value", [0, -1, True, "8"])
def test_limits_are_positive_integers(field: str, value: object) -> None:
    sizes: dict[str, object] = {
        "vocab_size": 8,
        "context_length": 8,
        "max_sequences": 8,
        "max_step_tokens": 8,
    }
    with pytest.raises(InvalidRequest) as refused:
        Limits(**(sizes | {field: value}))  # type: ignore[arg-type]
    assert refused.value.field == field


def test_each_running_sequence_has_a_token_in_each_step() -> None:
    with pytest.raises(InvalidRequest, match="max_sequences"):
        Limits(vocab_size=8, context_length=8, max_sequences=9, max_step_tokens=8)


HUGE = [10**5000, -(10**5000), "x" * 10**6, nested(5000)]


@pytest.mark.parametrize("wrong", HUGE, ids=["int", "negative", "text", "deep list"])
def test_prompt_9_a_refusal_is_short_whatever_the_id(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="prompt") as refused:
        check_request(request((wrong,)), LIMITS)
    assert len(str(refused.value)) < 300
