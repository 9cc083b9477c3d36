"""What a caller says beside the question: what it changes, and where it is told that it does not.

Owns: the header of fields without effect, what log and record have of such fields, effort.
Read next: `guarded.py`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.server.guarded import KEY, Guarded, guarded

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
HELLO = [{"role": "user", "content": "Hello!"}]
SWITCH = "{% if enable_thinking is false %}<think></think>{% endif %}"
WHOSE = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as found:
        yield found


@pytest.fixture
def template(server: Guarded) -> Iterator[None]:
    server.service.template, kept = SWITCH, server.service.template
    yield
    server.service.template = kept


def ask(server: Guarded, path: str, **body: Any) -> httpx.Response:
    url = f"http://127.0.0.1:{server.port}{path}"
    return httpx.post(url, json=body, headers=WHOSE, timeout=10)


def ignored(reply: httpx.Response) -> str | None:
    assert reply.status_code == 200, reply.text
    found: str | None = reply.headers.get("x-ignored-fields")
    return found


def client_of(server: Guarded) -> Any:
    url = f"http://127.0.0.1:{server.port}/v1"
    return openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)


def record(server: Guarded, reply: httpx.Response) -> dict[str, Any]:
    """Once it has ended."""
    url = f"http://127.0.0.1:{server.port}/firsthand/requests/{reply.headers['x-request-id']}"
    until = time.monotonic() + 5
    while True:
        found = httpx.get(url, headers=WHOSE, timeout=5).json()
        if found.get("status") is not None:
            return dict(found)
        assert time.monotonic() < until, found
        time.sleep(0.005)


def line(caplog: pytest.LogCaptureFixture, reply: httpx.Response) -> dict[str, Any]:
    """The one of its request."""
    facts = [one.__dict__["facts"] for one in caplog.records if "facts" in one.__dict__]
    (found,) = [one for one in facts if one.get("request_id") == reply.headers["x-request-id"]]
    return dict(found)


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("low", True), ("max", True)])
def test_effort_turns_the_templates_own_switch(
    server: Guarded, template: None, effort: str, thinks: bool
) -> None:
    reply = ask(server, CHAT, messages=HELLO, reasoning_effort=effort)
    assert ignored(reply) is None
    assert server.service.variables[-1] == {"enable_thinking": thinks}
    assert ignored(ask(server, RESPONSES, input="Hello!", reasoning={"effort": effort})) is None
    assert server.service.variables[-1] == {"enable_thinking": thinks}
    assert record(server, reply)["said"] == {"reasoning_effort": effort}


def test_what_the_body_sets_itself_goes_before_effort(server: Guarded, template: None) -> None:
    own = {"enable_thinking": True}
    ask(server, CHAT, messages=HELLO, reasoning_effort="none", chat_template_kwargs=own)
    assert server.service.variables[-1] == own


def test_effort_without_a_switch_is_taken_and_told(
    server: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream too: the header goes before its first byte."""
    caplog.set_level(logging.INFO, "firsthand")
    for stream in (False, True):
        reply = ask(server, CHAT, messages=HELLO, reasoning_effort="high", stream=stream)
        assert ignored(reply) == "reasoning_effort"
        assert server.service.variables[-1] == {}
        found = record(server, reply)
        assert (found["said"], found["ignored"]) == (
            {"reasoning_effort": "high"},
            ["reasoning_effort"],
        )
        told = line(caplog, reply)
        assert (told["said"], told["ignored"]) == (found["said"], found["ignored"])
    assert ignored(ask(server, CHAT, messages=HELLO)) is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": HELLO, "reasoning_effort": "ultra"}, "reasoning_effort"),
        (RESPONSES, {"input": "a", "reasoning": {"effort": "ultra"}}, "reasoning.effort"),
        (RESPONSES, {"input": "a", "reasoning": {"summary": "long"}}, "reasoning.summary"),
        (RESPONSES, {"input": "a", "include": ["web"]}, "include[0]"),
        (RESPONSES, {"input": [{"type": "function_call", "x": 1}]}, "input[0].call_id"),
        (RESPONSES, {"input": [{"type": "web_search_call"}]}, "input[0].type"),
        (RESPONSES, {"input": [{"role": "user", "content": "a", "x": 1}]}, "input[0].x"),
    ],
)
def test_an_unknown_value_is_refused_by_name(
    server: Guarded, path: str, body: dict[str, Any], param: str
) -> None:
    reply = ask(server, path, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_what_agent_kits_always_send(server: Guarded) -> None:
    """With the official client; its items go back as they came."""
    with client_of(server) as client:
        asked = {
            "model": "micro",
            "reasoning": {"effort": "medium", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "store": False,
        }
        raw = client.responses.with_raw_response.create(input="Hello!", **asked)
        names = "reasoning.summary, include[0], reasoning.effort"
        assert raw.headers["x-ignored-fields"] == names
        whole = raw.parse()
        assert whole.reasoning.effort == "medium" and whole.reasoning.summary is None
        assert whole.output[0].content[0].logprobs == []  # that word of `include` is another
        back: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
        items = [back, *(one.model_dump() for one in whole.output)]
        more = client.responses.create(input=items, **asked)
        assert more.output_text == "Hello"
        chat = client.chat.completions.create(
            model="micro", messages=HELLO, reasoning_effort="low", stream=True
        )
        assert "".join(one.choices[0].delta.content or "" for one in chat) == "Hello"
    assert json.loads(raw.text)["reasoning"] == {"effort": "medium", "summary": None}
