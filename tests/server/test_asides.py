"""What a caller says beside the question: what it changes, and where it is told that it does not.

Owns: the header of fields without effect, what log and record have of such fields, effort.
Read next: `guarded.py`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.fakes import Script
from tests.server.guarded import KEY, Guarded, guarded

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
HELLO = [{"role": "user", "content": "Hello!"}]
SWITCH = "{% if enable_thinking is false %}<think></think>{% endif %}"
TEXT = [("/v1/completions", {"prompt": "a"})]
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


@pytest.fixture(scope="module")
def lenient() -> Iterator[Guarded]:
    with guarded(lenient=True) as found:
        yield found


ODD_MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        (CHAT, {"messages": HELLO, "length_penalty": 1.0, "verbosity": "low"}, "verbosity, len"),
        (CHAT, {"messages": HELLO, "store": True}, "store"),
        (CHAT, {"messages": ODD_MESSAGES * 3}, "messages[0].content[0].cache_control"),
        ("/v1/completions", {"prompt": "a", "spaces_between_special_tokens": True}, "spaces"),
        (RESPONSES, {"input": "a", "text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"input": [{"role": "user", "content": "a", "x": 1}]}, "input[0].x"),
        ("/v1/embeddings", {"input": "a", "input_type": "query"}, "input_type"),
        (CHAT, {"messages": HELLO, "stream": True, "a\r\nb: ä": 1}, "a__b___"),
    ],
)
def test_a_lenient_server_leaves_out_what_it_does_not_have_and_says_so(
    server: Guarded, lenient: Guarded, path: str, body: dict[str, Any], names: str
) -> None:
    assert ask(server, path, **body).json()["error"]["code"] == "unsupported_parameter"
    told = ignored(ask(lenient, path, **body))
    assert told is not None and told.startswith(names)
    if body.get("messages") == ODD_MESSAGES * 3:
        assert told.count("cache_control") == 3


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        (CHAT, {"messages": HELLO, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": HELLO, "guided_regex": "a"}, "guided_regex"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        (CHAT, {"messages": [{**HELLO[0], "tool_calls": []}]}, "messages[0].tool_calls"),
        (CHAT, {"messages": HELLO, "temperature": "hot", "x": 1}, "temperature"),
        ("/predict", {"request_id": "a", "inputs": ["a"], "x": 1}, "x"),
    ],
)
def test_what_would_make_it_another_question_is_refused_there_too(
    lenient: Guarded, path: str, body: dict[str, Any], param: str
) -> None:
    reply = ask(lenient, path, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_many_names_are_told_in_part(lenient: Guarded) -> None:
    told = ignored(ask(lenient, CHAT, messages=HELLO, **{f"x{n}" * 40: n for n in range(200)}))
    assert told is not None and told.count(",") == 31 and len(told) < 3000


def test_null_counts_as_absent_where_the_field_is_unknown_too(server: Guarded) -> None:
    assert ignored(ask(server, CHAT, messages=[{**HELLO[0], "phase": None}], x=None)) is None


def test_a_body_may_name_its_request(server: Guarded) -> None:
    reply = ask(server, CHAT, messages=HELLO, request_id="mine-7")
    assert reply.headers["x-request-id"] == "mine-7"
    assert reply.json()["id"] == "chatcmpl-mine-7"
    assert record(server, reply)["id"] == "mine-7"
    head = {**WHOSE, "X-Request-Id": "header"}
    url = f"http://127.0.0.1:{server.port}{CHAT}"
    both = httpx.post(url, json={"messages": HELLO, "request_id": "mine-8"}, headers=head)
    assert (both.headers["x-request-id"], ignored(both)) == ("header", "request_id")
    bad = ask(server, CHAT, messages=HELLO, request_id="a b")
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "request_id")


def test_a_salt_of_the_body_stands_inside_the_keys_own(server: Guarded) -> None:
    assert ask(server, CHAT, messages=HELLO, cache_salt="mine").status_code == 200
    assert str(server.service.options[-1]["cache_salt"]).endswith(":mine")


def test_reasoning_may_be_left_out(server: Guarded) -> None:
    service = server.service
    kept = service.script, service.template
    service.script, service.template = Script(("<think>hm</think>", "yes")), "</think>"
    try:
        for stream in (False, True):
            asked = {"messages": HELLO, "stream": stream}
            assert "hm" in ask(server, CHAT, **asked).text
            reply = ask(server, CHAT, **asked, include_reasoning=False)
            assert "yes" in reply.text and "hm" not in reply.text
    finally:
        service.script, service.template = kept


@pytest.mark.parametrize(("kept", "left"), [(3, b"cde"), (9, b"abcde"), (-1, b"abcde")])
def test_a_prompt_is_cut_to_its_end(server: Guarded, kept: int, left: bytes) -> None:
    reply = ask(
        server, "/v1/completions", prompt="abcde", echo=True, truncate_prompt_tokens=kept
    ).json()
    assert reply["usage"]["prompt_tokens"] == len(left)
    assert reply["choices"][0]["text"] == left.decode() + "Hello"
    long = ask(server, CHAT, messages=[{"role": "user", "content": "x" * 900}], max_tokens=12)
    assert long.status_code == 400
    asked = {"messages": [{"role": "user", "content": "x" * 900}], "max_tokens": 12}
    short = ask(server, CHAT, **asked, truncate_prompt_tokens=-1).json()
    assert short["usage"]["prompt_tokens"] == 500
    assert ask(server, CHAT, messages=HELLO, truncate_prompt_tokens=0).status_code == 400


@pytest.mark.parametrize(("path", "asked"), [(CHAT, {"messages": HELLO}), *TEXT])
def test_usage_in_every_chunk(server: Guarded, path: str, asked: dict[str, Any]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = ask(server, path, **asked, stream=True, stream_options=options)
    chunks = [json.loads(one[6:]) for one in reply.text.split("\n\n") if one.startswith("data: {")]
    counts = [one["usage"]["completion_tokens"] for one in chunks]
    assert counts == sorted(counts) and counts[-1] == 5 and 3 in counts
    alone = {"stream_options": {"continuous_usage_stats": True}, "stream": True}
    assert ask(server, path, **asked, **alone).status_code == 400


def test_a_setting_turns_the_repetition_guard_on_for_who_says_nothing() -> None:
    with guarded(repetition_guard=True) as server:
        bodies: list[tuple[str, Any]] = [(CHAT, {"messages": HELLO}), (RESPONSES, {"input": "a"})]
        for path, asked in (*bodies, *TEXT):
            assert ask(server, path, **asked).status_code == 200
            assert server.service.options[-1]["repetition_guard"] is True
            assert ask(server, path, **asked, repetition_guard=False).status_code == 200
            assert server.service.options[-1]["repetition_guard"] is False
        assert ask(server, "/v1/embeddings", input="a").status_code == 200
        assert "repetition_guard" not in server.service.options[-1]


@pytest.mark.parametrize(
    ("path", "asked"), [(CHAT, {"messages": HELLO}), (RESPONSES, {"input": "a"}), *TEXT]
)
def test_a_tier_is_a_class(server: Guarded, path: str, asked: dict[str, Any]) -> None:
    def found(**more: Any) -> tuple[object, object]:
        reply = ask(server, path, **asked, **more)
        return server.service.options[-1]["priority"], ignored(reply)

    assert found(service_tier="flex") == ("background", None)
    assert found(service_tier="priority") == ("urgent", None)
    assert found(service_tier="default") == found(service_tier="auto") == ("normal", None)
    assert found(service_tier="scale") == ("normal", "service_tier")
    assert found(service_tier="flex", priority="normal") == ("normal", None)


def test_a_key_caps_the_tier_and_who_asks_is_told_where_content_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "firsthand")
    keys = tmp_path / "keys.toml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    keys.write_text(f'[[key]]\nname = "a"\nsha256 = "{digest}"\npriority = "normal"\n')
    whose: Any = {"user": "ann", "safety_identifier": "s", "metadata": {"run": "7" * 600}}
    for keeps in (False, True):
        with guarded(api_key=(), api_key_file=keys, record_content=keeps) as server:
            reply = ask(server, CHAT, messages=HELLO, service_tier="priority", **whose)
            found = record(server, reply)
            assert found["priority"] == "normal"
            told: Any = {**whose, "metadata": {"run": "7" * 512}} if keeps else {}
            assert found["said"] == {"service_tier": "priority", **told}
            assert line(caplog, reply)["said"] == found["said"]
