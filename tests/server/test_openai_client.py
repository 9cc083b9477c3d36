"""The official client against a real server with a real engine: what its users rely on."""

from __future__ import annotations

from itertools import groupby

import openai
import pytest

from firsthand.generation.golden import NUMERICS
from tests.server.conftest import Live

pytestmark = pytest.mark.native

HELLO = [{"role": "user", "content": "Hello!"}]


def test_models(live: Live) -> None:
    (card,) = live.client.models.list().data
    assert (card.id, card.object, card.owned_by) == ("micro", "model", "firsthand")
    assert card.max_model_len == 512
    assert live.client.models.retrieve("micro") == card


def test_a_chat_says_the_same_streamed_and_not(live: Live) -> None:
    """API-4, API-5."""
    asked = {"model": "micro", "messages": HELLO, "max_tokens": 12, "seed": 7}
    whole = live.client.chat.completions.create(**asked)
    chunks = list(
        live.client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 12
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({(c.id, c.created, c.model, c.system_fingerprint) for c in chunks}) == 1
    told = live.client.models.retrieve("micro").firsthand_fingerprint
    assert told["numerics"] == f"{NUMERICS} native auto int16"
    assert told["word"] == whole.system_fingerprint == chunks[0].system_fingerprint
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons == [None] * (len(reasons) - 1) + [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    used = chunks[-1].usage
    assert used is not None
    assert used.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])


def test_several_choices_streamed(live: Live) -> None:
    """LOGPROB-4, LOGPROB-5, LOGPROB-6: each index ends once, and says what it says alone."""
    asked = {"model": "micro", "messages": HELLO, "max_tokens": 9, "seed": 7}
    whole = live.client.chat.completions.create(**asked, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in whole.choices}) == 3
    one = live.client.chat.completions.create(**asked)
    assert one.choices[0].message.content == whole.choices[0].message.content
    texts, ends = {0: "", 1: "", 2: ""}, []
    for chunk in live.client.chat.completions.create(**asked, n=3, stream=True):
        (choice,) = chunk.choices
        assert choice.index not in ends, "nothing comes after the end"
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends.append(choice.index)
    assert sorted(ends) == [0, 1, 2]
    assert texts == {c.index: c.message.content for c in whole.choices}


@pytest.mark.parametrize("stream", [False, True])
def test_one_token(live: Live, stream: bool) -> None:
    """STOP-6."""
    answer = live.client.completions.create(
        model="micro", prompt="abc", max_tokens=1, temperature=0, stream=stream
    )
    if stream:
        ends = [c.choices[0].finish_reason for c in answer if c.choices[0].finish_reason]
        assert len(ends) == 1
    else:
        assert answer.usage.completion_tokens == 1


def test_logprobs_of_a_chat(live: Live) -> None:
    """LOGPROB-3: the bytes of all entries, joined, are the text's."""
    answer = live.client.chat.completions.create(
        model="micro", messages=HELLO, max_tokens=8, seed=1, logprobs=True, top_logprobs=2
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    raw = b"".join(bytes(entry.bytes) for entry in entries)
    assert raw.decode("utf-8", "replace") == answer.choices[0].message.content


def test_logprobs_come_with_held_text(live: Live) -> None:
    """LOGPROB-2: text is held for a stop string, the entries are not lost."""
    chunks = live.client.completions.create(
        model="micro", prompt="abc", max_tokens=16, seed=3, logprobs=2, stop=["zzzz"], stream=True
    )
    entries = [c.choices[0].logprobs for c in chunks]
    assert sum(len(entry.tokens or []) for entry in entries if entry) == 16
    offsets = [offset for entry in entries if entry for offset in entry.text_offset or []]
    assert offsets == sorted(offsets)


def test_a_list_of_prompts_answers_each_as_alone(live: Live) -> None:
    asked = {"model": "micro", "max_tokens": 6, "seed": 5}
    both = live.client.completions.create(prompt=["abc", "xyz"], n=2, **asked)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    for position, prompt in enumerate(("abc", "xyz")):
        alone = live.client.completions.create(prompt=prompt, n=2, **asked)
        texts = [choice.text for choice in both.choices[2 * position : 2 * position + 2]]
        assert texts == [choice.text for choice in alone.choices]
    assert both.usage.prompt_tokens == 6
    streamed = dict.fromkeys(range(4), "")
    for chunk in live.client.completions.create(prompt=["abc", "xyz"], n=2, stream=True, **asked):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == {choice.index: choice.text for choice in both.choices}


def test_echo_and_token_prompts(live: Live) -> None:
    ids = list(b"abc")
    asked = {"model": "micro", "max_tokens": 4, "seed": 5, "temperature": 0}
    text = live.client.completions.create(prompt="abc", **asked)
    echo = live.client.completions.create(prompt=ids, echo=True, **asked)
    assert echo.choices[0].text == "abc" + text.choices[0].text


def test_a_stop_string_ends_the_text(live: Live) -> None:
    """STOP-1: the streamed text is the whole one's, and its cause is told."""
    asked = {"model": "micro", "prompt": "abc", "max_tokens": 40, "seed": 11}
    free = live.client.completions.create(**asked).choices[0].text
    stop = next(piece for piece in (free[i : i + 2] for i in range(3, 30)) if piece.isascii())
    answer = live.client.completions.create(**asked, stop=[stop])
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert choice.text == free[: free.index(stop)]
    parts = live.client.completions.create(**asked, stop=[stop], stream=True)
    assert "".join(part.choices[0].text for part in parts) == choice.text
    shown = live.client.completions.create(
        **asked, stop=[stop], extra_body={"include_stop_str_in_output": True}
    )
    assert shown.choices[0].text == choice.text + stop


def test_extensions_in_the_body(live: Live) -> None:
    answer = live.client.chat.completions.create(
        model="micro",
        messages=HELLO,
        max_completion_tokens=5,
        temperature=0.5,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        logit_bias={"65": 1},
        user="me",
        extra_body={
            "top_k": 20,
            "min_p": 0.01,
            "repetition_penalty": 1.1,
            "stop_token_ids": [10],
            "ignore_eos": True,
            "min_tokens": 2,
            "priority": -1,
            "return_token_ids": True,
            "firsthand_timings": True,
            "skip_special_tokens": True,
        },
    )
    extra = answer.model_dump()
    assert len(extra["choices"][0]["token_ids"]) == answer.usage.completion_tokens
    assert len(extra["prompt_token_ids"]) == answer.usage.prompt_tokens
    timings = extra["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == answer.usage.prompt_tokens
    assert timings["prompt_n"] * timings["prompt_per_token_ms"] == pytest.approx(
        timings["prompt_ms"]
    )
    assert {"cache_n", "prompt_ms", "predicted_per_second", "queue_ms", "ttft_ms"} <= set(timings)


def test_errors_are_the_clients_own(live: Live) -> None:
    """API-7."""
    with pytest.raises(openai.NotFoundError) as missing:
        live.client.chat.completions.create(model="nope", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as long:
        live.client.chat.completions.create(
            model="micro", messages=[{"role": "user", "content": "x" * 600}]
        )
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    assert long.value.request_id
    with pytest.raises(openai.BadRequestError) as tools:
        live.client.chat.completions.create(
            model="micro",
            messages=HELLO,
            tools=[{"type": "function", "function": {"name": "f"}}],
        )
    assert (tools.value.code, tools.value.param) == ("invalid_value", "tools")
    with pytest.raises(openai.BadRequestError) as embeddings:
        live.client.embeddings.create(model="micro", input="x" * 600)
    assert (embeddings.value.code, embeddings.value.param) == ("context_length_exceeded", "input")


@pytest.mark.parametrize(("num_prompt", "wanted", "num_given"), [(40, 24, 24), (40, 1000, 472)])
def test_an_answer_is_cut_at_the_end_of_the_window(
    live: Live, num_prompt: int, wanted: int, num_given: int
) -> None:
    """STOP-7: what does not fit is clamped; STOP-8: a prompt that fills the window is refused."""
    answer = live.client.completions.create(
        model="micro",
        prompt="x" * num_prompt,
        max_tokens=wanted,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == num_given
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="512"):
        live.client.completions.create(model="micro", prompt="x" * 512, max_tokens=1)


def test_responses_whole_and_streamed(live: Live) -> None:
    asked = {"model": "micro", "input": "Hello!", "max_output_tokens": 8, "temperature": 0}
    whole = live.client.responses.create(**asked, instructions="Be brief.")
    assert (whole.status, whole.object) == ("incomplete", "response")
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 8
    events = list(live.client.responses.create(**asked, instructions="Be brief.", stream=True))
    kinds = [kind.removeprefix("response.") for kind, _ in groupby(e.type for e in events)]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert deltas == whole.output_text == events[-1].response.output_text
    with pytest.raises(openai.BadRequestError) as stored:
        live.client.responses.create(**asked, previous_response_id="resp_1")
    assert stored.value.param == "previous_response_id"


@pytest.mark.parametrize("stream", [False, True])
def test_what_goes_round_in_circles_is_ended(live: Live, stream: bool) -> None:
    """One token for ever; without the guard, to the end of the limit."""
    asked = {"model": "micro", "prompt": "abc", "max_tokens": 60, "logit_bias": {"97": 100}}

    def ended(**more: object) -> tuple[str, object, int]:
        body = {"ignore_eos": True, **more}
        answer = live.client.completions.create(**asked, stream=stream, extra_body=body)
        parts = list(answer) if stream else [answer]
        last = parts[-1].choices[0]
        text = "".join(part.choices[0].text for part in parts)
        return last.finish_reason, last.stop_reason, len(text)

    assert ended() == ended(repetition_guard=False) == ("length", None, 60)
    assert ended(repetition_guard=True) == ("stop", "repetition", 8)
    assert ended(repetition_guard={"times": 3}) == ("stop", "repetition", 3)
    with pytest.raises(openai.BadRequestError) as fault:
        ended(repetition_guard={"times": 1})
    assert fault.value.param == "repetition_guard.times"


def test_tokens_are_counted_as_they_are_computed(live: Live) -> None:
    asked = {"model": "micro", "input": "Hello!", "instructions": "Be brief."}
    count = live.client.responses.input_tokens.count(**asked)
    whole = live.client.responses.create(**asked, max_output_tokens=2)
    assert (count.object, count.input_tokens) == ("response.input_tokens", whole.usage.input_tokens)
    chat = {"model": "micro", "messages": HELLO}
    found = live.client.post("/chat/completions/input_tokens", body=chat, cast_to=object)
    answer = live.client.chat.completions.create(**chat, max_tokens=2)
    kind = "chat.completion.input_tokens"
    assert found == {"object": kind, "input_tokens": answer.usage.prompt_tokens}
    with pytest.raises(openai.BadRequestError) as fault:
        live.client.responses.input_tokens.count(model="micro", previous_response_id="resp_1")
    assert fault.value.param in ("input", "previous_response_id")


def test_a_conversation_of_items(live: Live) -> None:
    """An answer may be sent back as it came."""
    first = live.client.responses.create(
        model="micro", input="Hello!", max_output_tokens=4, top_logprobs=1, temperature=0
    )
    items = [item.model_dump(exclude_none=True) for item in first.output]
    more = live.client.responses.create(
        model="micro",
        input=[*items, {"role": "user", "content": [{"type": "input_text", "text": "And?"}]}],
        max_output_tokens=4,
    )
    assert more.usage.input_tokens > first.usage.input_tokens
