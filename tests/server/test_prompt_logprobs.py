"""Scores of a prompt over HTTP: `echo` with `logprobs`, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.conftest import Live

pytestmark = pytest.mark.native

ASKED = {"model": "micro", "prompt": "abcdef", "seed": 5, "logprobs": 1, "echo": True}


def whole(live: Live, **more: Any) -> Any:
    return live.client.completions.create(**{**ASKED, **more})


def test_an_echo_has_the_logprobs_of_the_prompt(live: Live) -> None:
    """LOGPROB-1: six tokens and one make seven entries; the first is null."""
    answer = whole(live, max_tokens=1)
    (choice,) = answer.choices
    found = choice.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 7
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    assert all(value < 0 for value in found.token_logprobs[1:])
    assert found.tokens[:6] == list("abcdef")
    assert found.text_offset[:7] == list(range(7))
    assert answer.usage.prompt_tokens == 6
    assert choice.text.startswith("abcdef")


def test_half_characters_have_no_place(live: Live) -> None:
    choice = whole(live, prompt="🙂🙂", max_tokens=0).choices[0]
    assert choice.text == "🙂🙂"
    assert choice.logprobs.text_offset == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_prompts_scores_are_those_of_the_same_tokens_generated(live: Live) -> None:
    drawn = whole(live, echo=False, max_tokens=6).choices[0]
    ids = list(b"abcdef")
    asked = {"return_token_ids": True}
    token_ids = whole(live, echo=False, max_tokens=6, extra_body=asked).choices[0].token_ids
    again = whole(live, prompt=ids + token_ids, max_tokens=0).choices[0]
    assert again.finish_reason == "length"
    assert again.logprobs.token_logprobs[6:] == drawn.logprobs.token_logprobs
    assert again.logprobs.top_logprobs[6:] == drawn.logprobs.top_logprobs


def test_a_stream_says_the_same(live: Live) -> None:
    expected = whole(live, max_tokens=4).choices[0]
    seen: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "text_offset": []}
    text = ""
    for chunk in whole(live, max_tokens=4, stream=True):
        (choice,) = chunk.choices
        text += choice.text
        for name, values in seen.items():
            values += getattr(choice.logprobs, name) or () if choice.logprobs else ()
    assert text == expected.text
    assert seen == {name: getattr(expected.logprobs, name) for name in seen}


def test_each_prompt_and_each_answer_has_its_own(live: Live) -> None:
    both = whole(live, prompt=["abcdef", "xy"], n=2, max_tokens=2).choices
    for index, prompt in enumerate(("abcdef", "xy")):
        for choice in both[2 * index : 2 * index + 2]:
            alone = whole(live, prompt=prompt, max_tokens=2).choices[0].logprobs
            size = len(prompt)
            assert choice.logprobs.token_logprobs[:size] == alone.token_logprobs[:size]
            assert len(choice.logprobs.tokens) == size + 2


def test_vllms_form(live: Live) -> None:
    asked = {"extra_body": {"prompt_logprobs": 2}}
    (choice,) = whole(live, echo=False, logprobs=None, max_tokens=1, **asked).choices
    echoed = whole(live, max_tokens=1).choices[0].logprobs
    assert choice.prompt_logprobs[0] is None
    for entry, token, logprob in zip(
        choice.prompt_logprobs[1:], "bcdef", echoed.token_logprobs[1:6], strict=True
    ):
        assert entry[str(ord(token))]["logprob"] == logprob
        ranks = [one["rank"] for one in entry.values() if one["rank"]]
        assert sorted(ranks) == [1, 2]
        assert 2 <= len(entry) <= 3
    chat = live.client.chat.completions.create(
        model="micro", messages=[{"role": "user", "content": "Hi"}], max_tokens=1, **asked
    )
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("max_tokens", {"max_tokens": 0, "echo": False}),
        ("n", {"max_tokens": 0, "n": 2}),
        ("n", {"stream": True, "n": 2}),
        ("prompt_logprobs", {"extra_body": {"prompt_logprobs": 3}}),
    ],
)
def test_what_cannot_be_is_refused_by_name(live: Live, field: str, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        whole(live, **more)
    assert refused.value.param == field
