"""Raw sockets: what goes over the wire, and clients that are slow, broken, or gone."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from starlette.types import ASGIApp, Message

from firsthand.errors import EngineError, EngineUnavailable
from firsthand.generation.completion import Completion
from firsthand.generation.options import Options
from firsthand.generation.service import Service, StreamUsage
from firsthand.observe.metrics import Metrics
from firsthand.request import Finish, FinishReason
from firsthand.server.app import build_app
from firsthand.server.asking import Ask
from firsthand.server.house import House
from firsthand.server.sse import StreamSettings
from tests.server.conftest import Live
from tests.server.fakes import FakeService, Script
from tests.server.running import Running, post, serving

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
WAIT_S = 40.0  # on a machine that does much else


class Tickets:
    """An admission that notes how each ticket was closed."""

    def __init__(self) -> None:
        self.closed: list[bool] = []
        self.options: Options = {}

    def admit(self, asks: Sequence[Ask]) -> list[Tickets]:
        self.options = asks[0].options
        return [self] * len(asks)

    def most_at_once(self, service: Service) -> int:
        return 64

    def withdraw(self) -> None:
        raise AssertionError("nothing is refused here")

    def finished(self, completion: Completion) -> None:
        pass

    def close(self, usage: StreamUsage, *, ended: bool) -> None:
        self.closed.append(ended)

    def submitted(self, abort: Callable[[], object]) -> None:
        pass

    @property
    def spent(self) -> bool:
        return False


def body(**more: object) -> bytes:
    asked = {"messages": [{"role": "user", "content": "Hello!"}], "stream": True, **more}
    return json.dumps(asked).encode()


def until(true: Callable[[], bool], wait_s: float = WAIT_S) -> float:
    started_s = time.monotonic()
    while not true():
        assert time.monotonic() - started_s < wait_s, "it never came"
        time.sleep(0.005)
    return time.monotonic() - started_s


def read_all(opened: socket.socket) -> bytes:
    """To the end of the chunked body."""
    found = b""
    while not found.endswith(b"0\r\n\r\n"):
        part = opened.recv(65536)
        if not part:
            break
        found += part
    return found


def events(raw: bytes) -> bytes:
    """The body without its chunk framing."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(parts)


@contextmanager
def scripted(script: Script, **stream: float) -> Iterator[tuple[Running, FakeService]]:
    service = FakeService(script)

    async def make() -> ASGIApp:
        settings = StreamSettings(**stream)
        return build_app(House({"micro": service}, Metrics(), stream=settings))

    with serving(make) as running:
        yield running, service


def test_api_4_the_bytes_of_a_stream() -> None:
    with scripted(Script()) as (running, _), running.connect() as opened:
        opened.sendall(post(CHAT, body(), headers="X-Request-Id: mine\r\n"))
        raw = read_all(opened)
    head = raw.partition(b"\r\n\r\n")[0].lower()
    for line in (
        b"content-type: text/event-stream; charset=utf-8",
        b"cache-control: no-cache",
        b"x-accel-buffering: no",
        b"x-request-id: mine",
    ):
        assert line in head.split(b"\r\n")
    assert b"content-length" not in head
    found = events(raw)
    blocks = found.split(b"\n\n")
    assert blocks.pop() == b""
    assert blocks.pop() == b"data: [DONE]"
    assert found.count(b"[DONE]") == 1
    values = [json.loads(block.removeprefix(b"data: ")) for block in blocks]
    assert all(block.startswith(b"data: {") and b"\n" not in block for block in blocks)
    assert all("finish_reason" in value["choices"][0] for value in values)
    assert [value["choices"][0]["delta"].get("content") for value in values] == [
        *("", "Hel", "lo", None)
    ]


def test_api_8_a_quiet_stream_has_comments() -> None:
    script = Script(pause_s=0.5)
    with scripted(script, ping_s=0.1) as (running, _), running.connect() as opened:
        opened.sendall(post(CHAT, body()))
        found = events(read_all(opened))
    assert found.startswith(b'data: {"id"'), "the first bytes come before the first token"
    assert found.count(b": ping\n\n") >= 3
    assert found.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (Script(fault=EngineError("boom at 0xdeadbeef00")), 500, "internal_error"),
        (Script(fault=EngineUnavailable("signal 11")), 503, "loading"),
        (Script(fault=ValueError("/some/path")), 500, "internal_error"),
        (Script(finish=Finish(FinishReason.DEADLINE)), 504, "deadline_exceeded"),
        (Script(finish=Finish(FinishReason.DEADLINE), pieces=()), 408, "deadline_exceeded"),
        (Script(finish=Finish(FinishReason.CANCELLED, "drain")), 503, "cancelled"),
        (Script(finish=Finish(FinishReason.ERROR, "NaN at 0xdeadbeef00")), 500, "internal_error"),
    ],
)
def test_a_failure_in_either_form(
    script: Script, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In a stream: an error event, then the end without [DONE]; never a reason `stop`. What the
    caller is not told stands in the log, once for each."""
    with scripted(script) as (running, service):
        with running.connect() as opened:
            opened.sendall(post(CHAT, body()))
            found = events(read_all(opened))
        last = json.loads(found.split(b"\n\n")[-2].removeprefix(b"data: "))
        assert last["error"]["code"] == code
        assert b"[DONE]" not in found
        assert b'"finish_reason":"' not in found
        reply = httpx.post(running.url + CHAT, content=body(stream=False), headers=JSON)
        assert reply.status_code == status
        assert reply.json()["error"] == last["error"] | {
            "message": reply.json()["error"]["message"]
        }
        assert service.streams[-1].is_closed
        assert not re.search(rb"0x[0-9a-f]{8}|/some/path", found + reply.content)
    told = re.findall(r"request req-\S+: ", caplog.text)
    assert len(told) == (2 if status == 500 or code == "loading" else 0)
    hidden = str(script.fault or script.finish.cause)
    assert (hidden in caplog.text) is bool(told)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_ends_its_generation(stream: bool) -> None:
    script = Script(pieces=("x",), pause_s=0.02, endless=True)
    with scripted(script) as (running, service):
        opened = running.connect()
        opened.sendall(post(CHAT, body(stream=stream)))
        until(lambda: bool(service.streams) and service.streams[0].num_tokens > 2)
        opened.close()
        until(lambda: service.streams[0].is_closed)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_gone_before_the_first_byte(stream: bool) -> None:
    """Nothing was read yet: neither the generation nor its ticket is left open."""
    service, tickets = FakeService(Script(endless=True, pause_s=0.01)), Tickets()
    app = build_app(House({"micro": service}, Metrics(), tickets))
    content = body(stream=stream)
    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }

    async def run() -> None:
        messages = [{"type": "http.request", "body": content}]
        gone = asyncio.Event()

        async def receive() -> Message:
            if messages:
                return messages.pop()
            gone.set()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if not gone.is_set():
                await asyncio.sleep(20 if message["type"] == "http.response.body" else 0)

        await app(scope, receive, send)

    asyncio.run(run())
    assert [stream.is_closed for stream in service.streams] == [True]
    assert tickets.closed == [False]


def test_several_prompts_are_closed_together() -> None:
    script = Script(pieces=("x",), pause_s=0.02, endless=True)
    with scripted(script) as (running, service):
        opened = running.connect()
        asked = json.dumps({"prompt": ["a", "b", "c"], "n": 2, "stream": True}).encode()
        opened.sendall(post("/v1/completions", asked))
        until(lambda: len(service.streams) == 3 and service.streams[2].num_tokens > 2)
        opened.close()
        until(lambda: all(stream.is_closed for stream in service.streams))


def test_api_6_a_reader_that_takes_nothing_is_dropped() -> None:
    """S-37: what waits for it is bounded, and after a while its generation ends."""
    script = Script(pieces=("x" * 1000,), endless=True)
    with scripted(script, stall_s=0.5) as (running, service):
        opened = running.connect(receive_buffer=4096)
        opened.sendall(post(CHAT, body()))
        until(lambda: bool(service.streams) and service.streams[0].is_closed)
        taken = service.streams[0].num_tokens
        assert taken < 512 * 1024, "the buffers, and nothing else"
        time.sleep(0.1)
        assert service.streams[0].num_tokens == taken
        opened.close()


def test_a_slow_reader_gets_everything() -> None:
    script = Script(pieces=tuple("abcdefgh" * 100), pause_s=0.0)
    with scripted(script, stall_s=5.0) as (running, _):
        with running.connect(receive_buffer=4096) as opened:
            opened.sendall(post(CHAT, body()))
            raw = b""
            for turn in range(100_000):
                part = opened.recv(65536)
                raw += part
                if turn < 10:
                    time.sleep(0.02)
                if not part or raw.endswith(b"0\r\n\r\n"):
                    break
        texts = [
            json.loads(block[6:])["choices"][0]["delta"].get("content", "")
            for block in events(raw).split(b"\n\n")
            if block.startswith(b"data: {")
        ]
        assert "".join(texts) == "abcdefgh" * 100


@pytest.mark.native
def test_blocks_are_free_one_step_after_the_client_went(live: Live) -> None:
    """The real engine: disconnect storm, then nothing runs and no block is used."""
    with ExitStack() as stack:
        for _ in range(8):
            opened = stack.enter_context(live.running.connect())
            opened.sendall(post(CHAT, body(max_tokens=450, ignore_eos=True, n=16)))
        until(lambda: live.service.load.num_open >= 6 and live.service.load.num_used_blocks > 0)
    until(lambda: live.service.load.num_open == 0)
    until(lambda: live.service.load.num_used_blocks == 0)


@pytest.mark.native
def test_a_slow_reader_costs_the_others_nothing(live: Live) -> None:
    with live.running.connect(receive_buffer=4096) as slow:
        asked = body(max_tokens=400, ignore_eos=True, logprobs=True, top_logprobs=20)
        slow.sendall(post(CHAT, asked))
        _ask_beside(live)
    until(lambda: live.service.load.num_open == 0)


def _ask_beside(live: Live) -> None:
    answer = live.client.completions.create(
        model="micro", prompt="abc", max_tokens=50, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 50


def test_requests_after_each_other_on_one_connection() -> None:
    with scripted(Script()) as (running, _), running.connect() as opened:
        for _ in range(3):
            opened.sendall(post(CHAT, body()))
            assert events(read_all(opened)).endswith(b"data: [DONE]\n\n")
