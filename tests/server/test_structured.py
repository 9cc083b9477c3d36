"""Forms of answers over HTTP: tools, JSON, reasoning; with written answers, and with a real engine.

Owns: the wire form of calls and reasoning, streamed and not, as the official client reads it.
May not know: how a text is read (`tests/text/test_answers.py`). Read next: `test_openai_client.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import ServiceOptions
from firsthand.request import Finish, FinishReason
from firsthand.server.app import build_app
from firsthand.server.house import House
from firsthand.text.tool_calls import ToolFormat
from tests.server.conftest import Client, Live, asking, live_server
from tests.server.fakes import FakeService, Script

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
QWEN = "{% if tools %}<tool_call>{{ tools }}</tool_call>{% endif %}</think>{{ tool_calls }}"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
CALLS = (
    '<think>\nhm\n</think>\n\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city": "Oslo"}}\n</tool_call>\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
)


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.fixture
def qwen(service: FakeService) -> FakeService:
    service.template = QWEN
    service.script = Script(pieces=tuple(CALLS))
    return service


def test_calls_and_reasoning_in_one_message(qwen: FakeService, ask: Client) -> None:
    reply = ask("POST", CHAT, json={"messages": HELLO, "tools": [WEATHER, PING]}).json()
    (choice,) = reply["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "I look."
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert [one["function"] for one in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
        {"name": "ping", "arguments": "{}"},
    ]
    assert len({one["id"] for one in message["tool_calls"]}) == 2
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == CALLS.index("\n\nI")
    assert qwen.rendered[-1][1] == [WEATHER, PING]


def test_struct_4_streamed_calls(qwen: FakeService, ask: Client) -> None:
    """STRUCT-5 too: index, id and name once per call; arguments a text wherever they are."""
    asked = {"messages": HELLO, "tools": [WEATHER, PING], "stream": True}
    found = events(ask("POST", CHAT, json={**asked, "n": 2}).text)
    for index in (0, 1):
        choices = [e["choices"][0] for e in found if e["choices"][0]["index"] == index]
        deltas = [choice["delta"] for choice in choices]
        calls = [one for delta in deltas for one in delta.get("tool_calls", [])]
        assert [one["index"] for one in calls if "id" in one] == [0, 1]
        names = [one["function"]["name"] for one in calls if "name" in one["function"]]
        assert names == ["get_weather", "ping"]
        assert all(isinstance(one["function"]["arguments"], str) for one in calls)
        joined = [
            "".join(o["function"]["arguments"] for o in calls if o["index"] == i) for i in (0, 1)
        ]
        assert joined == ['{"city": "Oslo"}', "{}"]
        assert "".join(delta.get("content", "") for delta in deltas) == "I look."
        for name in ("reasoning", "reasoning_content"):
            assert "".join(delta.get(name, "") for delta in deltas) == "hm"
        assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_cut_call_is_told_as_cut(qwen: FakeService, ask: Client) -> None:
    """STRUCT-3: `length`, the arguments as far as they came."""
    text = CALLS[: CALLS.index("Oslo") + 2]
    qwen.script = Script((text,), Finish(FinishReason.LENGTH, 9))
    choice = ask("POST", CHAT, json={"messages": HELLO, "tools": [WEATHER]}).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Os'


def test_none_may_be_called(qwen: FakeService, ask: Client) -> None:
    asked = {"messages": HELLO, "tools": [WEATHER], "tool_choice": "none"}
    choice = ask("POST", CHAT, json=asked).json()["choices"][0]
    assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]
    assert qwen.rendered[-1][1] is None
    assert "grammar" not in qwen.options[-1]


@pytest.mark.parametrize(
    ("more", "has_grammar"),
    [
        ({}, False),
        ({"parallel_tool_calls": False}, True),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, True),
    ],
)
def test_what_must_be_kept_is_a_grammar(
    qwen: FakeService, ask: Client, more: dict[str, Any], has_grammar: bool
) -> None:
    assert ask("POST", CHAT, json={"messages": HELLO, "tools": [WEATHER], **more}).is_success
    assert ("grammar" in qwen.options[-1]) is has_grammar
    if has_grammar:
        start = qwen.options[-1]["grammar"].text.partition("\n")[0]  # type: ignore[union-attr]
        assert (")*" in start) is (more.get("tool_choice") == "required"), (
            "a named one is called once"
        )
        assert "<think>" in qwen.options[-1]["grammar"].lead  # type: ignore[union-attr]


def test_a_conversation_with_calls_goes_to_the_template(qwen: FakeService, ask: Client) -> None:
    reply = ask("POST", CHAT, json={"messages": HELLO, "tools": [WEATHER]}).json()
    message = reply["choices"][0]["message"]
    call_id = message["tool_calls"][0]["id"]
    result = {"role": "tool", "tool_call_id": call_id, "content": "rain"}
    again = ask("POST", CHAT, json={"messages": [*HELLO, message, result], "tools": [WEATHER]})
    assert again.is_success, again.text
    told = qwen.rendered[-1][0]
    assert told[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert told[1]["reasoning_content"] == "hm"
    assert told[2]["tool_call_id"] == call_id


MESSAGE = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "rain"}


def test_a_call_that_the_template_would_leave_out_is_refused(
    service: FakeService, ask: Client
) -> None:
    error = ask("POST", CHAT, json={"messages": [*HELLO, MESSAGE, RESULT]}).json()["error"]
    assert error["param"] == "messages[1].tool_calls" and "--tool-call-parser" in error["message"]
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    ]
    error = ask("POST", RESPONSES, json={"input": items}).json()["error"]
    assert error["param"] == "input"
    for path in (CHAT + "/render", "/tokenize"):
        assert ask("POST", path, json={"messages": [*HELLO, MESSAGE]}).status_code == 400


def test_a_call_is_told_in_words_also_where_no_tool_may_be_called(
    service: FakeService, house: House
) -> None:
    told = asking(replace(house, tool_format=ToolFormat.HERMES))
    assert told("POST", CHAT, json={"messages": [*HELLO, MESSAGE, RESULT]}).is_success
    (_, assistant, result), tools = service.rendered[-1]
    assert '"name": "f"' in assistant["content"] and "tool_calls" not in assistant
    assert (result["role"], tools) == ("user", None)


def test_one_name_of_reasoning(qwen: FakeService, house: House) -> None:
    one = replace(house, reasoning_fields=("reasoning",))

    async def send() -> Any:
        transport = httpx.ASGITransport(app=build_app(one))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return (await client.post(CHAT, json={"messages": HELLO})).json()

    message = asyncio.run(send())["choices"][0]["message"]
    assert message["reasoning"] == "hm" and "reasoning_content" not in message


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [WEATHER], "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tools": [WEATHER], "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"tools": [WEATHER], "tool_choice": "must"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
    ],
)
def test_forms_that_exclude_each_other(
    qwen: FakeService, ask: Client, more: dict[str, Any], param: str
) -> None:
    reply = ask("POST", CHAT, json={"messages": HELLO, **more})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)


RESPONSES = "/v1/responses"
FLAT = [{"type": "function", **tool["function"]} for tool in (WEATHER, PING)]  # type: ignore[dict-item]


def test_the_items_of_a_response(qwen: FakeService, ask: Client) -> None:
    asked = {"input": "Hello!", "tools": FLAT}
    whole = ask("POST", RESPONSES, json=asked).json()
    kinds = ["reasoning", "message", "function_call", "function_call"]
    assert [item["type"] for item in whole["output"]] == kinds
    thought, said, weather, ping = whole["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert said["content"][0]["text"] == "I look."
    assert (weather["name"], weather["arguments"]) == ("get_weather", '{"city": "Oslo"}')
    assert (ping["name"], ping["arguments"], ping["status"]) == ("ping", "{}", "completed")
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert (whole["tool_choice"], len(whole["tools"])) == ("auto", 2)

    text = ask("POST", RESPONSES, json={**asked, "stream": True}).text
    found = [json.loads(one.split("data: ", 1)[1]) for one in text.split("\n\n") if one]
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    final = found[-1]["response"]
    assert [item["type"] for item in final["output"]] == kinds
    for index, item in enumerate(final["output"]):
        own = [one for one in found if one.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1] == {**own[-1], "type": "response.output_item.done", "item": item}
        deltas = "".join(one["delta"] for one in own if one["type"].endswith(".delta"))
        body = item.get("arguments") or item["content"][0]["text"]
        assert deltas == body
        assert {one["item_id"] for one in own[1:-1]} == {item["id"]}

    result = {"type": "function_call_output", "call_id": weather["call_id"], "output": "rain"}
    again = {**asked, "input": [{"role": "user", "content": "Hi"}, *whole["output"], result]}
    assert ask("POST", RESPONSES, json=again).is_success
    user, assistant, tool = qwen.rendered[-1][0]
    assert assistant["reasoning_content"] == "hm" and len(assistant["tool_calls"]) == 2
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert (user["role"], tool["content"]) == ("user", "rain")
    assert qwen.rendered[-1][1] == [WEATHER, PING]


def test_forms_of_a_response(qwen: FakeService, ask: Client) -> None:
    format = {"type": "json_schema", "name": "x", "schema": {"type": "integer"}}
    reply = ask("POST", RESPONSES, json={"input": "Hi", "text": {"format": format}})
    assert reply.json()["text"]["format"] == {**format, "strict": None, "description": None}
    assert qwen.options[-1]["grammar"].field == "text.format.schema"  # type: ignore[union-attr]
    named = {"type": "function", "name": "ping"}
    asked = {"input": "Hi", "tools": FLAT, "tool_choice": named}
    assert ask("POST", RESPONSES, json=asked).json()["tool_choice"] == named
    assert '"ping"' in qwen.options[-1]["grammar"].text  # type: ignore[union-attr]
    for wrong, param in (
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named}, "tool_choice"),
    ):
        refused = ask("POST", RESPONSES, json={"input": "Hi", **wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.fixture(scope="module")
def tooled(micro_folder: Path) -> Iterator[Live]:
    """Its template knows no tools; the operator says how it calls them."""
    options = ServiceOptions(micro_folder, LoadOptions(threads=1), name="micro")
    with live_server(options, tool_format=ToolFormat.HERMES) as server:
        yield server


@pytest.mark.native
def test_random_weights_call_tools(tooled: Live) -> None:
    client = tooled.client
    asked: dict[str, Any] = {
        "model": "micro",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 3,
        "max_tokens": 200,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    (again,) = final.message.tool_calls
    assert again.function.arguments == call.function.arguments
    assert final.finish_reason == "tool_calls"


def schema(given: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": given}}


@pytest.mark.native
def test_beside_tools_an_answer_has_its_form(tooled: Live) -> None:
    """Random weights write what they may: a call, or the JSON that was asked for."""
    form = {"type": "object", "properties": {"sum": {"enum": [1, 2]}}, "required": ["sum"]}
    for seed in range(6):
        answer = tooled.client.chat.completions.create(
            model="micro",
            messages=HELLO,
            tools=[WEATHER],
            response_format=schema({**form, "additionalProperties": False}),
            seed=seed,
            max_tokens=60,
        )
        message = answer.choices[0].message
        if answer.choices[0].finish_reason == "stop":
            assert json.loads(message.content)["sum"] in (1, 2)
        elif message.content:
            assert message.content.startswith(("{", "<tool_call>"))


@pytest.mark.native
def test_responses_of_random_weights(tooled: Live) -> None:
    client = tooled.client
    asked: dict[str, Any] = {
        "model": "micro",
        "input": "hi",
        "tools": FLAT[:1],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 200,
    }
    with client.responses.stream(**asked) as stream:
        (call,) = stream.get_final_response().output
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    done = client.responses.create(
        model="micro",
        input="hi",
        text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "boolean"}}},
    )
    assert done.output_text in ("true", "false")


@pytest.mark.native
def test_struct_1_a_broken_grammar_is_400_and_the_next_is_served(live: Live) -> None:
    broken: list[dict[str, Any]] = [
        {"response_format": schema({"type": "object", "properties": {"a": "text"}})},
        {"response_format": schema({"type": "string", "pattern": "("})},
        {"response_format": schema("")},
        {"extra_body": {"structured_outputs": {"json_object": False}}},
        {"extra_body": {"structured_outputs": {"regex": "("}}},
    ]
    client = live.client
    for more in broken:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(model="micro", messages=HELLO, stream=stream, **more)
            assert (refused.value.param or "").startswith(("response_format", "structured_outputs"))
    with pytest.raises(openai.BadRequestError):
        client.completions.create(
            model="micro", prompt="x", extra_body={"structured_outputs": {"regex": "("}}
        )
    with pytest.raises(openai.BadRequestError) as endless:
        client.chat.completions.create(
            model="micro",
            messages=HELLO,
            response_format={"type": "json_object"},
            extra_body={"ignore_eos": True},
        )
    assert endless.value.param == "ignore_eos"
    large = schema({"type": "integer", "minimum": 19999999999, "maximum": 20000000000})
    done = client.chat.completions.create(
        model="micro", messages=HELLO, response_format=large, max_tokens=40
    )
    assert int(done.choices[0].message.content) in (19999999999, 20000000000)
    picked = client.completions.create(
        model="micro", prompt="x", extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert picked.choices[0].text in ("yes", "no")
