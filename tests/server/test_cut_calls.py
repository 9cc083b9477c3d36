"""Answers that end in the middle of a tool call: the call as far as it came, and no markup.

Owns: proof of that over HTTP, streamed and not. Read next: `tests/text/test_answers.py`.
"""

from __future__ import annotations

import pytest

from firsthand.request import Finish, FinishReason
from tests.server.conftest import Client
from tests.server.fakes import FakeService, Script
from tests.server.test_structured import CHAT, HELLO, PING, QWEN, events

HALF = '<tool_call>\n{"name": "ping", "arguments": {"a'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "finish", "reason", "content", "arguments"),
    [
        ('Sure.\n<tool_call>\n{"na', FinishReason.LENGTH, "length", "Sure.", None),
        (HALF, FinishReason.LENGTH, "length", "", '{"a'),
        (HALF, FinishReason.STOP_STRING, "stop", "", '{"a'),
        ("Sure. <tool_", FinishReason.LENGTH, "length", "Sure.", None),
    ],
)  # fmt: skip
def test_a_call_that_is_cut_leaves_no_markup(
    service: FakeService, ask: Client, stream: bool, text: str, finish: FinishReason,
    reason: str, content: str, arguments: str | None,
) -> None:  # fmt: skip
    service.template = QWEN.replace("</think>", "")
    service.script = Script(pieces=tuple(text), finish=Finish(finish))
    reply = ask("POST", CHAT, json={"messages": HELLO, "tools": [PING], "stream": stream})
    if stream:
        deltas = [one["choices"][0] for one in events(reply.text)]
        assert deltas[-1]["finish_reason"] == reason
        said = "".join(one["delta"].get("content") or "" for one in deltas)
        calls = [call for one in deltas for call in one["delta"].get("tool_calls", ())]
    else:
        (choice,) = reply.json()["choices"]
        assert choice["finish_reason"] == reason
        said, calls = choice["message"]["content"] or "", choice["message"].get("tool_calls", [])
    assert said.strip() == content
    got = "".join(call["function"]["arguments"] for call in calls) if calls else None
    assert got == arguments


def test_responses_call_that_breaks_off_is_incomplete(service: FakeService, ask: Client) -> None:
    service.template = QWEN.replace("</think>", "")
    service.script = Script(pieces=tuple(HALF), finish=Finish(FinishReason.STOP_STRING))
    tools = [{"type": "function", "name": "ping"}]
    (item,) = ask("POST", "/v1/responses", json={"input": "a", "tools": tools}).json()["output"]
    assert (item["type"], item["status"], item["arguments"]) == (
        "function_call",
        "incomplete",
        '{"a',
    )
