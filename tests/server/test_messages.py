"""Anthropic's form of messages, as their official client reads it.

Owns: proof of `routes/messages.py` and `blocks.py`, and the form of errors there.
Read next: `test_structured.py`, whose answers these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from firsthand.request import Finish, FinishReason
from tests.server.fakes import Script
from tests.server.guarded import KEY, Guarded, guarded
from tests.server.test_structured import CALLS, QWEN, WEATHER

pytestmark = pytest.mark.process

HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
TOOL = {
    "name": "get_weather",
    "description": "The weather.",
    "input_schema": WEATHER["function"]["parameters"],  # type: ignore[index]
}
PING = {"name": "ping", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as found:
        yield found


@pytest.fixture
def client(server: Guarded) -> Iterator[Any]:
    service = server.service
    service.script, service.template = Script(), "template"
    url = f"http://127.0.0.1:{server.port}"
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as found:
        yield found


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "micro", "max_tokens": 50, "messages": HELLO, **more}


def test_a_text_whole_and_streamed(server: Guarded, client: Any) -> None:
    body = asked(system="Be brief.", stop_sequences=["x"])
    body["extra_body"] = {"temperature": 0.5, "top_k": 3}  # the client leaves them out
    whole = client.messages.create(**body)
    assert [block.model_dump(exclude_none=True) for block in whole.content] == [
        {"type": "text", "text": "Hello"}
    ]
    assert (whole.role, whole.stop_reason, whole.stop_sequence) == ("assistant", "end_turn", None)
    assert whole.id.startswith("msg_") and whole.usage.output_tokens == 5
    assert [one["role"] for one in server.service.rendered[-1][0]] == ["system", "user"]
    options = server.service.options[-1]
    assert (options["max_tokens"], options["stop"], options["top_k"]) == (50, ["x"], 3)
    with client.messages.stream(**body) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert (final.content[0].text, final.usage.output_tokens) == ("Hello", 5)
    count = client.messages.count_tokens(model="micro", messages=HELLO, system="Be brief.")
    assert count.input_tokens == whole.usage.input_tokens == final.usage.input_tokens


def test_thinking_and_calls_and_their_results(server: Guarded, client: Any) -> None:
    server.service.template = QWEN
    server.service.script = Script(pieces=tuple(CALLS))
    body = asked(tools=[TOOL, PING], tool_choice={"type": "auto"})
    whole = client.messages.create(**body)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    thought, said, weather, ping = whole.content
    assert (thought.thinking, said.text, whole.stop_reason) == ("hm", "I look.", "tool_use")
    assert (weather.name, weather.input, ping.input) == ("get_weather", {"city": "Oslo"}, {})
    with client.messages.stream(**body) as stream:
        final = stream.get_final_message()
    plain = [[one.model_dump(exclude={"id"}) for one in made.content] for made in (whole, final)]
    assert plain[0] == plain[1]
    results = [
        {"type": "tool_result", "tool_use_id": one.id, "content": text}
        for one, text in ((weather, "rain"), (ping, [{"type": "text", "text": "pong"}]))
    ]
    told: list[Any] = [
        *HELLO,
        {"role": "assistant", "content": [one.model_dump() for one in whole.content]},
        {"role": "user", "content": [*results, {"type": "text", "text": "And?"}]},
    ]
    client.messages.create(**{**body, "messages": told})
    roles = [one["role"] for one in server.service.rendered[-1][0]]
    assert roles == ["user", "assistant", "tool", "tool", "user"]
    assistant = server.service.rendered[-1][0][1]
    assert assistant["reasoning_content"] == "hm" and len(assistant["tool_calls"]) == 2
    assert server.service.rendered[-1][1][0]["function"]["description"] == "The weather."


@pytest.mark.parametrize(
    ("choice", "has_grammar"),
    [
        ({"type": "any"}, True),
        ({"type": "tool", "name": "ping"}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, True),
        ({"type": "auto", "disable_parallel_tool_use": False}, False),
        ({"type": "none"}, False),
    ],
)
def test_a_choice_of_tools(
    server: Guarded, client: Any, choice: dict[str, Any], has_grammar: bool
) -> None:
    server.service.template = QWEN
    client.messages.create(**asked(tools=[TOOL, PING], tool_choice=choice))
    assert ("grammar" in server.service.options[-1]) is has_grammar


def test_what_a_call_was_given_stands_in_the_prompt_as_it_was_written(
    server: Guarded, client: Any
) -> None:
    server.service.template = QWEN
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "北京"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "晴"}
    told: list[Any] = [
        *HELLO,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    client.messages.create(**asked(tools=[TOOL], messages=told))
    (made,) = server.service.rendered[-1][0][1]["tool_calls"]
    assert "北京" in str(made["function"]["arguments"])


@pytest.mark.parametrize(
    ("finish", "reason", "sequence"),
    [
        (Finish(FinishReason.LENGTH, 5), "max_tokens", None),
        (Finish(FinishReason.CONTEXT), "max_tokens", None),
        (Finish(FinishReason.STOP_STRING, "END"), "stop_sequence", "END"),
    ],
)
def test_why_it_ended(
    server: Guarded, client: Any, finish: Finish, reason: str, sequence: str | None
) -> None:
    server.service.script = Script(finish=finish)
    for answer in (
        client.messages.create(**asked()),
        client.messages.stream(**asked()).__enter__().get_final_message(),
    ):
        assert (answer.stop_reason, answer.stop_sequence) == (reason, sequence)


def test_an_answer_goes_on_from_the_last_message(server: Guarded, client: Any) -> None:
    told = [*HELLO, {"role": "assistant", "content": "Well, "}]
    client.messages.create(**asked(messages=told))
    assert server.service.streams[-1].prompt.continues


def test_thinking_turns_the_templates_switch(server: Guarded, client: Any) -> None:
    server.service.template = "{% if enable_thinking %}{% endif %}"
    for kind, thinks in (("disabled", False), ("enabled", True)):
        more = {"budget_tokens": 1024} if thinks else {}
        raw = client.messages.with_raw_response.create(**asked(thinking={"type": kind, **more}))
        assert server.service.variables[-1] == {"enable_thinking": thinks}
        ignored = "thinking.budget_tokens" if thinks else None
        assert raw.headers.get("x-ignored-fields") == ignored


def test_errors_have_their_form(server: Guarded, client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**asked(model="nope"))
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    image = {"type": "image", "source": {"type": "url", "url": "https://x/"}}
    for more, word in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [image]}]}, "text only"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"extra_body": {"mcp_servers": []}}, "mcp_servers"),
    ):
        with pytest.raises(anthropic.BadRequestError, match=word) as fault:
            client.messages.create(**asked(**more))
        assert fault.value.body["type"] == "error"  # type: ignore[index]
    url = f"http://127.0.0.1:{server.port}/v1/messages"
    refused = httpx.post(url, json=asked(), headers={"x-api-key": "wrong" * 5})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    head = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    assert httpx.post(f"{url}?beta=true", json=asked(), headers=head).status_code == 200
    assert httpx.get(url, headers=head).json()["error"]["type"] == "invalid_request_error"
    server.service.script = Script(fault=RuntimeError("/etc/secret"))
    with pytest.raises(anthropic.APIStatusError) as broken, client.messages.stream(**asked()) as s:
        s.get_final_message()
    assert "secret" not in str(broken.value) and "failed to answer" in str(broken.value)


def test_the_contract_at_the_door_holds_here_too(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from firsthand.data.contract import Contract\n"
        "from pydantic import Field\nfrom typing import Annotated\n"
        "class Short(Contract):\n    text: Annotated[str, Field(max_length=6)]\n"
    )
    with guarded(contract=f"{own}:Short") as server:
        url = f"http://127.0.0.1:{server.port}/v1/messages"
        for text, status in (("short", 200), ("a long text", 400)):
            body = asked(messages=[{"role": "user", "content": text}])
            reply = httpx.post(url, json=body, headers={"x-api-key": KEY})
            assert reply.status_code == status, reply.text
