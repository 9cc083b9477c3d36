"""Clients that are still sending when they are refused, or never begin: what they are told, and
that they hold nothing for ever.

Owns: proof of how `guard/connection.py` and `guard/incoming.py` end a request that is not whole.
Read next: `test_guard_http.py`.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.server.fakes import Script
from tests.server.guarded import AUTH, CHAT, Guarded, drain, guarded, post, statuses

pytestmark = pytest.mark.process

PATH = "/v1/chat/completions"
LARGE = 24 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as running:
        yield running


def head(length: int, headers: str = AUTH) -> bytes:
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{headers}\r\n"
    ).encode()


def chunked(headers: str = AUTH) -> bytes:
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Transfer-Encoding: chunked\r\n{headers}\r\n"
    ).encode()


def code(answer: bytes) -> str:
    found: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
    return found


@pytest.mark.parametrize(
    ("request_", "status", "named"),
    [
        (head(LARGE) + b" " * LARGE, 413, "body_too_large"),
        (chunked() + b"%x\r\n" % LARGE + b" " * LARGE + b"\r\n0\r\n\r\n", 413, "body_too_large"),
        (head(LARGE, "") + b" " * LARGE, 401, "invalid_api_key"),
        (head(1 << 20, "") + b" " * (1 << 20), 401, "invalid_api_key"),
        (b"NO HTTP\r\n\r\n" + b" " * LARGE, 400, "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * LARGE, 431, "headers_too_large"),
    ],
    ids=["length", "chunks", "no key", "no key, in bounds", "no HTTP", "no end of the head"],
)
def test_who_writes_all_before_reading_gets_the_answer(
    server: Guarded, request_: bytes, status: int, named: str
) -> None:
    with server.connect() as opened:
        opened.sendall(request_)  # raises where the connection is reset
        answer = drain(opened)
    assert statuses(answer) == [status]
    assert code(answer) == named
    assert b"connection: close" in answer.lower()


def test_a_small_body_that_is_refused_costs_no_connection(server: Guarded) -> None:
    with server.connect() as opened:
        for length in (100, 60_000):
            opened.sendall(head(length, "") + b" " * length)
            answer = b""
            while not answer.endswith(b"}"):
                answer += opened.recv(65536)
            assert statuses(answer) == [401] and b"connection: close" not in answer.lower()
        opened.sendall(post(PATH, CHAT, AUTH + "Connection: close\r\n"))
        answer = drain(opened)
    assert statuses(answer) == [200], answer


def test_what_is_dropped_is_bounded_in_time(server: Guarded) -> None:
    server.running.peers.linger_s = 0.5
    with server.connect() as opened:
        opened.sendall(head(1 << 40, ""))
        assert statuses(opened.recv(65536)) == [401]
        began_s = time.perf_counter()
        with pytest.raises(OSError):
            while time.perf_counter() - began_s < 20:
                opened.sendall(b" " * 1024)
                time.sleep(0.01)
    wait_for(lambda: not server.running.peers.connections)


def test_what_is_dropped_is_bounded_in_bytes(server: Guarded) -> None:
    server.running.peers.linger_s = 60.0
    sent = 0
    with server.connect() as opened:
        opened.sendall(head(1 << 40, ""))
        with pytest.raises(OSError):
            while sent < 1 << 30:
                opened.sendall(b" " * (1 << 20))
                sent += 1 << 20
    assert sent < 256 << 20
    wait_for(lambda: not server.running.peers.connections)


def test_a_pause_in_the_middle_of_a_stream_is_no_place_for_an_answer(server: Guarded) -> None:
    """What follows a request and is no HTTP ends its connection; no second head comes."""
    with server.connect() as opened:
        opened.sendall(post(PATH, CHAT) + b"\x00\x01\x02 no HTTP\r\n\r\n")
        assert len(statuses(drain(opened))) == 1


@pytest.mark.parametrize("extension", [200, 100_000])
def test_extensions_of_chunks_are_bounded(server: Guarded, extension: int) -> None:
    piece = b"1;" + b"x" * extension + b"\r\n \r\n"
    num = 40
    rest = b"%x\r\n" % len(CHAT) + CHAT + b"\r\n0\r\n\r\n"
    with server.connect() as opened:
        opened.sendall(chunked(AUTH + "Connection: close\r\n") + piece * num + rest)
        answer = drain(opened)
    if num * extension < 32 << 10:
        assert statuses(answer) == [200]
    else:
        assert statuses(answer) == [400] and b"framing" in answer


def test_chunks_of_one_byte_are_no_attack(server: Guarded) -> None:
    content = CHAT.replace(b'"max', b" " * 20_000 + b'"max')
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in content)
    with server.connect() as opened:
        opened.sendall(chunked(AUTH + "Connection: close\r\n") + pieces + b"0\r\n\r\n")
        answer = drain(opened)
    assert statuses(answer) == [200], answer


@pytest.mark.parametrize(
    "host",
    [
        *("", "Host:\r\n", "Host: a\r\nHost: a\r\n", "Host: a\r\nHost: b\r\n", "Host: a b\r\n"),
        *("Host: a, b\r\n", "Host: a/b\r\n", "Host: a@b\r\n", "Host: a:65536\r\n", "Host: [a\r\n"),
    ],
)
def test_what_is_no_host_is_refused_by_name(server: Guarded, host: str) -> None:
    answer = server.exchange(f"GET /livez HTTP/1.1\r\n{host}{AUTH}\r\n".encode())
    assert statuses(answer) == [400] and code(answer) == "invalid_request"
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["param"] == "Host"


@pytest.mark.parametrize("host", ["a", "a.b-c_d:80", "127.0.0.1:8000", "[::1]:65535", "a:"])
def test_what_is_a_host_is_taken(server: Guarded, host: str) -> None:
    request_ = f"GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    assert statuses(server.exchange(request_.encode())) == [200]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *(("/livez?verbose", None), ("/readyz?verbose=1", None), ("/v1/models", None)),
        *(("/readyz?verbose&exclude=queue", "exclude"), ("/health?verbose", "verbose")),
        *(("/v1/models?limit=1", "limit"), ("/v1/models/micro?x", "x"), ("/version?a=b", "a")),
    ],
)
def test_a_query_that_is_not_honoured_is_refused_by_name(
    server: Guarded, path: str, name: str | None
) -> None:
    status, answer = server.get(path)
    assert status == (200 if name is None else 400)
    if name is not None:
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", name)


def test_a_query_is_no_place_for_a_field(server: Guarded) -> None:
    status, answer = server.post(PATH + "?api-version=1", CHAT)
    assert status == 400 and b'"param":"api-version"' in answer
    assert server.post("/nowhere?a=1", CHAT)[0] == 404


def wait_for(true: Callable[[], bool], limit_s: float = 40.0) -> None:
    until_s = time.perf_counter() + limit_s
    while not true():
        assert time.perf_counter() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    "headers",
    [
        "X-Request-Deadline-Ms: 5\r\nX-Request-Deadline-Ms: 9000\r\n",
        "X-Priority: urgent\r\nX-Priority: background\r\n",
        "Content-Type: application/json\r\n",
        AUTH,
        "X-Api-Key: a\r\nX-Api-Key: a\r\n",
    ],
)
def test_a_header_that_decides_stands_there_once(server: Guarded, headers: str) -> None:
    status, answer = server.post(PATH, CHAT, AUTH + headers)
    name = headers.partition(":")[0]
    assert (status, code(answer)) == (400, "invalid_request")
    assert f'"{name}"'.encode() in answer


@pytest.mark.parametrize(
    ("expects", "status"),
    [("100-continue", 200), ("100-Continue", 200), ("200-ok", 417), ("", 417)],
)
def test_what_is_expected_is_met_or_refused(server: Guarded, expects: str, status: int) -> None:
    answer = server.post(PATH, CHAT, AUTH + f"Expect: {expects}\r\n")[1]
    assert statuses(answer)[-1] == status
    assert (code(answer) == "expectation_failed") if status == 417 else True


@pytest.mark.parametrize("whole", [True, False])
def test_a_path_has_a_bound(server: Guarded, whole: bool) -> None:
    """With its query, and it counts as part of the head; also before its end is there."""
    path = "/" + "a" * 40_000
    end = " HTTP/1.1\r\nHost: localhost\r\n\r\n" if whole else ""
    answer = server.exchange(f"GET {path}{end}".encode())
    assert (statuses(answer), code(answer)) == ([414], "uri_too_long")
    if whole:
        query = "?" + "a" * 20_000
        assert server.get("/health" + query + "a" * 20_000)[0] == 414
        assert server.get("/health" + query, f"X: {'a' * 20_000}\r\n")[0] == 431


def test_a_web_socket_costs_one_line_of_the_log(
    server: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    headers = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n"
    answer = server.exchange(f"GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
    assert (statuses(answer), code(answer)) == ([400], "invalid_request")
    assert not [one for one in caplog.records if one.name.startswith("uvicorn")]


def test_a_client_that_will_say_no_more_is_gone() -> None:
    """One that has closed looks the same, and its work must not go on."""
    with (
        guarded(Script(endless=True, pause_s=0.01)) as server,
        server.connect() as opened,
    ):
        opened.sendall(post(PATH, CHAT))
        opened.shutdown(socket.SHUT_WR)
        assert drain(opened) == b""
