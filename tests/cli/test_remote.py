"""Commands that ask a server: ours, others', and ones that misbehave.

Owns: proof of `cli/client.py` and `cli/remote.py`. Read next: `tests/server/test_openai_client.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from firsthand.cli.client import client_of
from firsthand.cli.conversation import Piece
from firsthand.cli.remote import write_answer
from firsthand.errors import EngineUnavailable, FirsthandError, InvalidRequest, ModelNotFound
from tests.cli.test_commands import call

KEY = "some-key-0123456789"
CARD = {"id": "micro", "object": "model", "max_model_len": 512, "firsthand_status": "ready"}


@dataclass
class Other:
    """A server that answers what it was told to."""

    url: str = ""
    status: int = 200
    head: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cards: list[Any] = field(default_factory=lambda: [CARD])
    asked: list[tuple[str, dict[str, Any] | None, str | None]] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        other = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                other.asked.append((self.path, None, self.headers["Authorization"]))
                self.answer(json.dumps({"object": "list", "data": other.cards}).encode(), 200)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                other.asked.append((self.path, body, self.headers["Authorization"]))
                self.answer(other.body, other.status)

            def answer(self, body: bytes, status: int) -> None:
                self.send_response(status)
                for name, value in other.head.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture
def other() -> Iterator[Other]:
    with running(Other()) as made:
        yield made


@contextmanager
def running(other: Other) -> Iterator[Other]:
    with ThreadingHTTPServer(("127.0.0.1", 0), other.handler()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        other.url = f"http://127.0.0.1:{server.server_port}"
        yield other
        server.shutdown()
        thread.join()


def events(*values: object) -> bytes:
    lines = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def delta(finish: str | None = None, **content: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


WHOLE = events(delta(role="assistant"), delta(content="He"), delta(content="llo"), delta("stop"))
WHOLE += events({"choices": [], "usage": {}}, "[DONE]")


def pieces(other: Other) -> list[Piece]:
    return list(client_of(other.url, None).chat({"model": "micro", "messages": []}))


def test_f_87_what_an_answer_cost_is_told_below_it(other: Other) -> None:
    timings = {"queue_ms": 0, "ttft_ms": 35.2, "predicted_per_second": 41.26, "else": 1}
    other.body = events(delta(content="a"), {**delta("stop"), "timings": timings}, "[DONE]")
    shown = call("chat", "--url", other.url, "--report", stdin="one\n")
    assert shown.stdout == "a\n"
    assert "(queue 0 ms · first token after 35 ms · 41.3 tokens/s)\n" in shown.stderr
    ((_, body, _),) = [one for one in other.asked if one[1] is not None]
    assert body is not None and body["timings_per_token"] is True


def test_f_86_a_conversation_with_a_server(other: Other) -> None:
    other.body = b": ping\n\n" + WHOLE
    flags = ("--url", other.url, "--api-key", f"{KEY},another", "--temperature", "0")
    shown = call("chat", *flags, "--stop", "x", stdin="one\ntwo\n/reset\nthree\n")
    assert shown.stdout == "Hello\n" * 3
    assert [path for path, _, _ in other.asked] == ["/v1/models"] + 3 * ["/v1/chat/completions"]
    assert {key for _, _, key in other.asked} == {f"Bearer {KEY}"}
    bodies = [body for _, body, _ in other.asked if body is not None]
    assert [len(body.pop("messages")) for body in bodies] == [1, 3, 1]
    sent: dict[str, object] = {"model": "micro", "stream": True, "temperature": 0.0, "stop": ["x"]}
    sent["max_tokens"] = 1024
    assert bodies == [sent] * 3


def test_what_was_not_asked_for_is_left_to_the_server(other: Other) -> None:
    other.body = WHOLE
    call("chat", "--url", f"{other.url}/v1/", "--model", "mine", stdin="one\n")
    ((path, body, key),) = other.asked
    assert (path, key) == ("/v1/chat/completions", None)
    assert body is not None and set(body) == {"model", "messages", "stream", "max_tokens"}
    assert body["model"] == "mine"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--threads", "2"), "threads"),
        (("--url", "ftp://x"), "url"),
        (("--url", "http://x:99999"), "url"),
        (("some-model",), "--model NAME"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(
    other: Other, flags: tuple[str, ...], says: str
) -> None:
    shown = call("chat", "--url", other.url, *flags, stdin="one\n", code=2)
    assert says in shown.stderr
    assert other.asked == []


def test_without_a_model_and_without_a_url() -> None:
    assert "--url" in call("chat", code=2).stderr
    assert "--url" in call("chat", "some-model", "--model", "x", code=2).stderr


NESTED = b'{"error": {"message": "too much", "type": "x", "code": null}}'
REFUSALS: list[tuple[int, bytes, type[FirsthandError], str]] = [
    (503, NESTED, EngineUnavailable, "too much (to be tried again in 7 s)"),
    (401, NESTED, InvalidRequest, "api_key: .* 401 .* too much"),
    (404, b'{"message": "nowhere"}', ModelNotFound, "nowhere"),
    (400, b'{"error": "a text"}', InvalidRequest, "a text"),
    (500, b"<html>", EngineUnavailable, "no reason was given"),
    (422, b'{"detail": [1]}', InvalidRequest, "no reason was given"),
]


@pytest.mark.parametrize(("status", "body", "kind", "says"), REFUSALS)
def test_a_refusal_says_whose_fault_it_is(
    other: Other, status: int, body: bytes, kind: type[FirsthandError], says: str
) -> None:
    other.status, other.body, other.head = status, body, {"Retry-After": "7"}
    with pytest.raises(kind, match=says.replace("(", r"\(").replace(")", r"\)")):
        pieces(other)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (events(delta(content="a")), "cut off"),
        (b"", "cut off"),
        (events(delta(content="a"), {"error": {"message": "lost"}}), "lost"),
        (events("nothing"), "no JSON"),
        (events("[1]"), "no JSON"),
        (b"data: " + b"x" * (5 << 20), "line over"),
    ],
)
def test_a_stream_that_goes_wrong_is_an_error(other: Other, body: bytes, says: str) -> None:
    other.body = body
    with pytest.raises(EngineUnavailable, match=says):
        pieces(other)


def test_an_answer_that_fails_ends_nothing_else(other: Other) -> None:
    other.body = events(delta(content="half"))
    shown = call("chat", "--url", other.url, stdin="one\ntwo\n", code=1)
    assert shown.stdout == "half\nhalf\n"
    assert shown.stderr.count("error: ") == 2
    assert [len(body["messages"]) for _, body, _ in other.asked if body] == [1, 1]


def test_ctrl_c_ends_an_answer_and_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    closed = []

    class Interrupted:
        def models(self) -> list[dict[str, Any]]:
            return []

        def chat(self, body: object) -> Any:
            try:
                yield Piece("some")
                raise KeyboardInterrupt
            finally:
                closed.append(True)

    assert write_answer(Interrupted(), {}) == "some"
    shown = capsys.readouterr()
    assert shown.out == "some\n" and "interrupted" in shown.err
    assert closed == [True]


def test_reasoning_goes_to_the_person_and_a_cut_is_told(
    other: Other, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"reasoning": "hm", "reasoning_content": "hm"}
    other.body = events(delta(**both), delta(content="x"), delta("length"), "[DONE]")
    assert write_answer(client_of(other.url, None), {}) == "x"
    shown = capsys.readouterr()
    assert shown.out == "x\n"
    assert shown.err.startswith("hm") and "(stopped: " in shown.err


def test_nobody_is_there() -> None:
    shown = call("ps", "--url", "http://127.0.0.1:1", code=1)
    assert "http://127.0.0.1:1/v1: cannot be reached" in shown.stderr


def test_f_88_ps(other: Other) -> None:
    other.cards = [CARD | {"firsthand_memory_bytes": 3 << 20}, {"id": "theirs"}, {"no": "name"}]
    lines = call("ps", "--url", other.url).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["NAME", "STATUS", "CONTEXT", "PLANNED", "OPEN", "SHA256", "RELEASE"],
        ["micro", "ready", "512", "3.0", "MiB", "-", "-", "-"],
        ["theirs", "-", "-", "-", "-", "-", "-"],
    ]
    shown = call("ps", "--url", other.url, "--json").stdout
    assert [card["id"] for card in json.loads(shown)["models"]] == ["micro", "theirs"]
    release = {"firsthand_release": "ab" * 32, "firsthand_release_number": 7}
    canary = release | {"id": "micro@7", "firsthand_canary_share": 0.05}
    other.cards = [CARD | release, canary]
    lines = call("ps", "--url", other.url).stdout.splitlines()
    assert lines[1].split()[-2:] == ["7", "abababababab"]
    assert lines[2].endswith("7 abababababab, 0.05 of the requests")
    other.cards = ["x"]
    assert "lists no models" in call("ps", "--url", other.url, code=1).stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("https://x/v1/", "https://x:443/v1"),
        ("http://[::1]:80/llm", "http://[::1]:80/llm/v1"),
    ],
)
def test_an_address_with_or_without_the_version(url: str, shown: str) -> None:
    assert str(client_of(url, None)) == shown


def test_a_key_is_never_shown() -> None:
    assert KEY not in repr(client_of("http://x", KEY))
    with pytest.raises(InvalidRequest, match="api_key"):
        client_of("http://x", "a\nb")
