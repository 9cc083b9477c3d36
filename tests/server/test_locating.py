"""`param` names the field as the caller wrote it, on every route, and for what is no value yet.

Owns: proof of `locating.py`. Read next: `test_errors.py`.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.server.locating import MAX_LOCATED_BYTES, steps_in, steps_to_fault, written
from tests.server.conftest import Client

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
         "messages[0].content[0].text"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0].text"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "json_schema"}},
         "response_format.json_schema"),
        (CHAT, {"messages": HELLO, "response_format": {"type": "text", "text": 1}},
         "response_format.text"),
        (CHAT, {"messages": HELLO, "text": 1}, "text"),
        (CHAT, {"messages": HELLO, "str": 1}, "str"),
        (CHAT, {"messages": HELLO, "logit_bias": {"1": "a"}}, "logit_bias.1"),
        (RESPONSES, {"input": "a", "text": 5}, "text"),
        (RESPONSES, {"input": "a", "text": 1.5}, "text"),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "x"}}}, "text.format.type"),
        (RESPONSES, {"input": "a", "text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
         "input[0].content[0].text"),
        ("/v1/completions", {"prompt": [[1], [2, "x"]]}, "prompt[1][1]"),
        ("/v1/completions", {"prompt": ["a"] * 300}, "prompt"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input"),
        ("/predict", {"request_id": "a", "inputs": ["a"], "options": {"text": 1}}, "options.text"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)  # fmt: skip
def test_the_path_is_that_of_the_body(
    ask: Client, path: str, body: dict[str, Any], param: str
) -> None:
    reply = ask("POST", path, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_tools_of_responses_have_their_own_form(ask: Client, service: Any) -> None:
    service.template = "{% if tools %}{{ tools }}{% endif %}<tool_call>"
    tools = [{"type": "function", "name": "fine"}, {"type": "function", "name": "a b"}]
    error = ask("POST", RESPONSES, json={"input": "a", "tools": tools}).json()["error"]
    assert error["param"] == "tools[1].name"
    assert "function" not in error["message"]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b'{"a": 1, "a": 2}', "a"),
        (b'{"messages": [{"role": "user", "role": "x"}]}', "messages[0].role"),
        (b'{"messages": [], "temperature": NaN}', "temperature"),
        (b'{"logit_bias": {"1": -Infinity}}', "logit_bias.1"),
        (b'{"stop": [1, [2, 1e999]]}', "stop[1][1]"),
        (b'{"messages": [{"role": "user", "content": "a\\ud800b"}]}', "messages[0].content"),
        (b'{"metadata": {"\\udc00": "a"}}', "metadata"),
        (b'{"\\udc00": 1, "\\udc00": 2}', None),
        (b'{"stop": ["a", "\xed\xa0\x80"]}', "stop[1]"),
        (b'{"seed": -' + b"1" * 5000 + b"}", "seed"),
        (b'{"a": ', None),
        (b"[1]", None),
    ],
)
def test_what_strict_json_refuses_has_a_place(ask: Client, content: bytes, param: str) -> None:
    reply = ask("POST", CHAT, content=content, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_long_body_is_not_searched() -> None:
    content = b'{"a": NaN, "b": "' + b"x" * MAX_LOCATED_BYTES + b'"}'
    assert steps_to_fault(content) == []
    assert steps_to_fault(content.replace(b"x", b"")) == ["a"]


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"\x82\xa1a\x01\xa1a\x02", "a"),
        (b"\x82\xa1x\x01\xa1b\x92\x80\x82\xa1a\x82\xa1x\x01\xa1y\x02\xa1a\x02", "b[1].a"),
    ],
)
def test_what_message_pack_repeats_has_a_place(ask: Client, content: bytes, param: str) -> None:
    msgspec.msgpack.decode(content)
    headers = {"content-type": "application/msgpack"}
    reply = ask("POST", "/predict", content=content, headers=headers)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=100)
@given(values, st.lists(st.integers(0, 3) | st.text(max_size=3), max_size=6), st.booleans())
def test_whatever_a_location_is_its_steps_lead_somewhere(
    value: Any, location: list[int | str], missing: bool
) -> None:
    steps = steps_in(value, location, missing=missing)
    here = value
    for step in steps[: -1 if missing else None]:
        here = here[step]
    assert isinstance(written(steps), str)


@settings(deadline=None, max_examples=100)
@given(values)
def test_in_what_is_right_no_fault_is_found(value: Any) -> None:
    assert steps_to_fault(json.dumps(value).encode()) == []
