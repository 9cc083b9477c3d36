"""Every way to be refused has one shape, the right status, and says nothing of us."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest

from firsthand.errors import (
    CapacityExceeded,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    UnsupportedModel,
)
from firsthand.generation.service import Status
from firsthand.request import Finish, FinishReason
from firsthand.server.house import House
from tests.server.conftest import asking
from tests.server.fakes import FakeService, Script

Ask = Callable[..., httpx.Response]
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
STRUCTURED = "structured_outputs"
TOOL = {"type": "function", "function": {"name": "f"}}
JSON = {"content-type": "application/json"}


def check(reply: httpx.Response, status: int, code: str | None, param: str | None = None) -> None:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert set(reply.json()) == {"error"}
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert not re.search(r"0x[0-9a-f]{8}|/tmp/|Traceback", error["message"])


def test_api_7_routes_and_methods(ask: Ask) -> None:
    check(ask("GET", "/nope"), 404, "not_found")
    check(ask("GET", "/health/"), 404, "not_found")
    wrong = ask("GET", CHAT)
    check(wrong, 405, None)
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe{",
        '{"prompt": "数据"}'.encode("gbk"),
        '{"prompt": "a"}'.encode("utf-16"),
        b'{"a":',
        b"",
        b"[]",
        b'"x"',
        b"null",
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 5000,
        b'{"prompt": "a", "seed": ' + b"1" * 10_000 + b"}",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xed\xa0\x80"}',
    ],
    ids=range(16),
)
def test_api_1_2_3_bodies_that_are_no_json(ask: Ask, content: bytes) -> None:
    reply = ask("POST", "/v1/completions", content=content, headers=JSON)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert "数据" not in reply.text


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {},
        {"content-type": "application/json; charset=gbk"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/msgpack"},
    ],
)
def test_types_that_are_not_taken(ask: Ask, headers: dict[str, str]) -> None:
    reply = ask("POST", "/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    check(reply, 415, "unsupported_media_type")


def test_a_body_too_large(ask: Ask) -> None:
    content = b'{"prompt": "' + b"x" * (8 * 1024 * 1024) + b'"}'
    check(ask("POST", "/v1/completions", content=content, headers=JSON), 413, "body_too_large")


@pytest.mark.parametrize(
    ("more", "code", "param"),
    [
        ({"max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"max_tokens": 2**31}, "invalid_value", "max_tokens"),
        ({"max_tokens": 10**18}, "invalid_value", "max_tokens"),
        ({"max_tokens": "10"}, "invalid_value", "max_tokens"),
        ({"max_tokens": 1.5}, "invalid_value", "max_tokens"),
        ({"max_tokens": True}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens"),
        ({"temperature": "NaN"}, "invalid_value", "temperature"),
        ({"temperature": -0.1}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"n": 10**5}, "invalid_value", "n"),
        ({"n": 0}, "invalid_value", "n"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": [""]}, "invalid_value", "stop[0]"),
        ({"stop": [1]}, "invalid_value", "stop[0]"),
        ({"stop": ["a"] * 5}, "invalid_value", "stop"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "invalid_value",
            "response_format.json_schema.schema",
        ),
        ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids[0]"),
        ({"stop_token_ids": [10**12]}, "invalid_value", "stop_token_ids[0]"),
        ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"a": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"logprobs": 1}, "invalid_value", "logprobs"),
        ({"stream": 1}, "invalid_value", "stream"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": None}, "invalid_value", "messages"),
        ({"messages": [{"role": "x", "content": "a"}]}, "invalid_value", "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "texts", "text": "a"}]}]},
            "invalid_value",
            "messages[0].content[0].type",
        ),
        ({"tools": []}, "invalid_value", "tools"),
        ({"tools": [TOOL]}, "invalid_value", "tools"),
        ({"tool_choice": "auto"}, "invalid_value", "tool_choice"),
        ({"parallel_tool_calls": False}, "invalid_value", "parallel_tool_calls"),
        ({"functions": []}, "unsupported_parameter", "functions"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {}}, "invalid_value", "response_format.type"),
        ({STRUCTURED: {}}, "invalid_value", STRUCTURED),
        ({STRUCTURED: {"json": None}}, "invalid_value", STRUCTURED),
        (
            {"structured_outputs": {"guided": "("}},
            "unsupported_parameter",
            "structured_outputs.guided",
        ),
        (
            {"structured_outputs": {"json_object": False}},
            "invalid_value",
            "structured_outputs.json_object",
        ),
        ({"prompt_logprobs": 21}, "invalid_value", "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
        ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
        ({"chat_template": "{{ 1 }}"}, "unsupported_parameter", "chat_template"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"max_tokenz": 1}, "unsupported_parameter", "max_tokenz"),
        ({"model": "other"}, "model_not_found", "model"),
        ({"model": 1}, "invalid_value", "model"),
        ({"priority": "first"}, "invalid_value", "priority"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "invalid_value",
            "continue_final_message",
        ),
    ],
)
def test_fields_are_refused_by_name(
    ask: Ask, more: dict[str, object], code: str, param: str
) -> None:
    """STOP-3, STOP-5, STOP-9, S-40, S-44 …"""
    asked = {"messages": HELLO, **more}
    check(ask("POST", CHAT, json=asked), 404 if code == "model_not_found" else 400, code, param)


@pytest.mark.parametrize(
    "prompt", [[[-1]], [2**40], [1, "a"], [True], [], [[]], ["a", 1], {"a": 1}, 7, [1.5], None]
)
def test_prompt_9_prompts_that_are_none(ask: Ask, prompt: object) -> None:
    reply = ask("POST", "/v1/completions", json={"prompt": prompt})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("prompt")


def test_s_40_answers_are_bounded(ask: Ask, service: FakeService) -> None:
    asked = {"prompt": ["a"] * 100, "n": 3}
    check(ask("POST", "/v1/completions", json=asked), 400, "invalid_value", "n")
    check(
        ask("POST", "/v1/completions", json={"prompt": ["a"] * 10**4}),
        400,
        "invalid_value",
        "prompt",
    )
    asked = {"prompt": "a", "best_of": 2}
    check(ask("POST", "/v1/completions", json=asked), 400, "invalid_value", "best_of")
    assert not service.streams


def test_one_bad_prompt_of_several_leaves_none_behind(ask: Ask, service: FakeService) -> None:
    asked = {"prompt": [[1], [256], [1] * 600]}
    code = "context_length_exceeded"
    check(ask("POST", "/v1/completions", json=asked), 400, code, "prompt")
    assert [stream.is_closed for stream in service.streams] == [True, True]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": [1, 2, 300]}, "prompt[2]"),
        ("/v1/completions", {"prompt": [[1], [2, 257]]}, "prompt[1][1]"),
        ("/v1/embeddings", {"input": [[1], [2, 257]]}, "input[1][1]"),
    ],
)
def test_a_token_that_is_none_is_named_by_its_place(
    ask: Ask, service: FakeService, path: str, body: dict[str, object], param: str
) -> None:
    check(ask("POST", path, json=body), 400, "invalid_value", param)
    assert not service.streams


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_each_role_has_its_fields(ask: Ask, service: FakeService, role: str) -> None:
    """What has no place in a message is refused, null is not, and a result needs its call's id."""
    service.template = "{{ tools }} {{ tool_calls }}"
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    every = {"tool_calls": [call], "tool_call_id": "a", "reasoning": "x", "reasoning_content": "x"}
    taken = {"tool": {"tool_call_id"}, "assistant": set(every) - {"tool_call_id"}}.get(role, set())
    needed = {"tool_call_id": "a"} if role == "tool" else {}
    for field, value in every.items():
        message = {"role": role, "content": "x", "name": "n", **dict.fromkeys(every), **needed}
        reply = ask("POST", CHAT, json={"messages": [{**message, field: value}]})
        if field in taken:
            assert reply.status_code == 200, reply.text
        else:
            check(reply, 400, "unsupported_parameter", f"messages[0].{field}")
    if needed:
        reply = ask("POST", CHAT, json={"messages": [{"role": role, "content": "x"}]})
        check(reply, 400, "invalid_value", "messages[0].tool_call_id")


@pytest.mark.parametrize(
    "field",
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"],
)
def test_the_ignore_list_is_taken(ask: Ask, service: FakeService, field: str) -> None:
    values = {"metadata": {"a": "b"}, "store": False}
    asked = {"messages": HELLO, field: values.get(field, "x")}
    assert ask("POST", CHAT, json=asked).status_code == 200
    assert set(service.options[0]) == {"max_tokens"}


MEDIA = [
    (CHAT, "messages", {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}),
    (CHAT, "messages", {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
    (CHAT, "messages", {"type": "video_url", "video_url": {"url": "https://x/"}}),
    (CHAT, "messages", {"type": "file", "file": {"file_id": "file-1"}}),
    ("/v1/responses", "input", {"type": "input_image", "image_url": "https://x/", "detail": "low"}),
    ("/v1/responses", "input", {"type": "input_file", "file_id": "file-1"}),
]


@pytest.mark.parametrize(("path", "field", "part"), MEDIA)
@pytest.mark.parametrize("is_lenient", [False, True])
def test_what_is_no_text_is_refused_in_one_sentence(
    house: House, path: str, field: str, part: dict[str, object], is_lenient: bool
) -> None:
    ask = asking(replace(house, lenient=is_lenient))
    kind = "text" if path == CHAT else "input_text"
    content = [{"type": kind, "text": "What is this?"}, part]
    reply = ask("POST", path, json={field: [{"role": "user", "content": content}]})
    check(reply, 400, "unsupported_parameter", f"{field}[0].content[1].type")
    message = reply.json()["error"]["message"]
    assert message.endswith("this server takes text only, no images, audio, video or files")


def test_null_is_nobodys_wish(ask: Ask) -> None:
    names = ("tools", "max_tokens", "n", "stop", "seed", "logit_bias", "stream", "response_format")
    asked = {"messages": HELLO, **dict.fromkeys(names)}
    assert ask("POST", CHAT, json=asked).status_code == 200


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (CapacityExceeded("1040 requests are in progress"), 503, "queue_full"),
        (EngineUnavailable("pid 7 died by 0xdeadbeef11"), 503, "loading"),
        (EngineClosed("pid 7, closed by 0xdeadbeef11"), 503, "draining"),
        (EngineError("0xdeadbeef11"), 500, "internal_error"),
        (UnsupportedModel("no"), 400, "unsupported_parameter"),
        (RuntimeError("/etc/secret 0xdeadbeef11"), 500, "internal_error"),
    ],
)
def test_faults_of_ours(
    ask: Ask,
    service: FakeService,
    fault: Exception,
    status: int,
    code: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S-73: the reply of a 500 has the request's id and nothing of the fault; the log has all."""
    service.fault = fault
    reply = ask("POST", CHAT, json={"messages": HELLO}, headers={"x-request-id": "mine"})
    check(reply, status, code)
    assert reply.headers["x-request-id"] == "mine"
    hidden = isinstance(fault, EngineError | RuntimeError) and not isinstance(fault, EngineClosed)
    assert [record.levelname for record in caplog.records] == (
        [] if not hidden else ["ERROR"] if status == 500 else ["WARNING"]
    )
    assert ("mine" in caplog.text and "0xdeadbeef11" in caplog.text) is hidden
    if status == 500:
        assert "mine" in reply.json()["error"]["message"]
    if status == 503:
        assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize("given", ["a b", "x" * 129, "é", "http://x/", ""])
def test_s_51_foreign_request_ids_are_replaced(ask: Ask, given: str) -> None:
    reply = ask("GET", "/version", headers={"x-request-id": given.encode()})
    assert reply.headers["x-request-id"].startswith("req-")


def test_headers_that_are_options(ask: Ask, service: FakeService) -> None:
    headers = {"x-priority": "-3", "x-request-deadline-ms": "1500"}
    asked = {"messages": HELLO, "priority": "background"}
    assert ask("POST", CHAT, json=asked, headers=headers).status_code == 200
    assert service.options[0]["priority"] == "urgent"
    assert service.options[0]["timeout_s"] == 1.5
    for name, value in (("X-Priority", "soon"), ("X-Request-Deadline-Ms", "-1")):
        check(ask("POST", CHAT, json=asked, headers={name: value}), 400, "invalid_value", name)


def test_a_deadline_that_passed_while_it_ran_tells_what_it_came_to(
    ask: Ask, service: FakeService
) -> None:
    service.script = Script(("Hel",), Finish(FinishReason.DEADLINE))
    for path in (CHAT, "/v1/completions"):
        asked = {"messages": HELLO} if path == CHAT else {"prompt": "abc"}
        whole = ask("POST", path, json=asked)
        assert (whole.status_code, whole.json()["error"]["code"]) == (504, "deadline_exceeded")
        used = whole.json()["error"]["usage"]
        assert used["completion_tokens"] == 3 and used["prompt_tokens"] > 0
        streamed = ask("POST", path, json={**asked, "stream": True}).text
        assert json.loads(streamed.strip().rpartition("data: ")[2])["error"]["usage"] == used
    service.script = Script((), Finish(FinishReason.DEADLINE))
    early = ask("POST", CHAT, json={"messages": HELLO})
    assert early.status_code == 408 and "usage" not in early.json()["error"]


@pytest.mark.parametrize(
    ("accept", "as_pack"),
    [
        ("application/msgpack", True),
        ("application/x-msgpack;q=1, application/json", True),
        ("application/json, application/msgpack", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_s_92_a_reply_of_predict_has_the_form_that_is_accepted(
    ask: Ask, accept: str, as_pack: bool
) -> None:
    body = {"request_id": "a", "inputs": ["b"]}
    reply = ask("POST", "/predict", json=body, headers={"accept": accept})
    kind = "application/msgpack" if as_pack else "application/json"
    assert reply.headers["content-type"] == kind
    read = msgspec.msgpack.decode if as_pack else msgspec.json.decode
    assert read(reply.content)["outputs"] == ["Hello"]


def test_health_generate_asks_each_model_for_a_token(ask: Ask, service: FakeService) -> None:
    service.script = Script(("H",), Finish(FinishReason.DEADLINE))
    check(ask("GET", "/health_generate"), 503, "degraded")
    service.script = Script(("H",), Finish(FinishReason.LENGTH, 1))
    assert ask("GET", "/health_generate").json() == {"status": "ok"}
    assert service.options[-1]["max_tokens"] == 1 and service.streams[-1].is_closed
    service.fault = EngineUnavailable("gone")
    check(ask("GET", "/health_generate"), 503, "loading")
    service.status, service.fault = Status.FAILED, None
    num_asked = len(service.streams)
    check(ask("GET", "/health_generate"), 503, "degraded")
    assert len(service.streams) == num_asked


def test_the_shape_is_the_documented_one(ask: Ask) -> None:
    shape = json.dumps(ask("GET", "/nope").json())
    assert re.fullmatch(
        r'\{"error": \{"message": .*, "type": .*, "param": .*, "code": .*\}\}', shape
    )


def test_every_code_stands_in_the_page() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/server.md").read_text()
    codes = set()
    for file in (root / "src/firsthand/server").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                at = {"Refused": 2, "ErrorReply": 1}.get(node.func.id, 100)
                codes |= {
                    one.value for one in node.args[at : at + 1] if isinstance(one, ast.Constant)
                }
    told = {code for code in codes if isinstance(code, str)} - {"client_closed"}  # nobody is told
    assert len(told) > 20
    assert sorted(code for code in told if f"`{code}`" not in page) == []
