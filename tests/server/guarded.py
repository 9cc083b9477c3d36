"""The app behind its guard and its connections, on a real socket, over a fake service.

Owns: `guarded`, and a raw exchange. May not know: what is tested. Read next: `test_guard_http.py`.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from firsthand.server.configured import Configured
from firsthand.server.listening import bind, listener_of, uvicorn_config
from firsthand.server.model_entries import ModelEntry
from firsthand.server.running import Serving, around, assemble
from firsthand.server.settings import Settings
from firsthand.server.starting import run
from tests.server.fakes import FakeService, Script, registry_of

KEY = "test-key-0123456789"
AUTH = f"Authorization: Bearer {KEY}\r\n"
CHAT = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}'
STREAM = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": true}'


class TimedService(FakeService):
    """With a clock that goes."""

    def clock(self) -> float:
        return time.perf_counter()


@dataclass
class Guarded:
    port: int
    running: Serving
    service: TimedService
    loop: asyncio.AbstractEventLoop

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        opened = socket.socket()
        if receive_buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        opened.settimeout(10)
        opened.connect(("127.0.0.1", self.port))
        return opened

    def exchange(self, request: bytes, limit_s: float = 10.0) -> bytes:
        """All that is answered until the server closes, or says nothing more for a while."""
        with self.connect() as opened:
            opened.settimeout(limit_s)
            opened.sendall(request)
            return drain(opened)

    def post(self, path: str, body: bytes, headers: str = AUTH) -> tuple[int, bytes]:
        """One exchange on a connection of its own: the status, and the whole answer."""
        answer = self.exchange(post(path, body, headers + "Connection: close\r\n"))
        return statuses(answer)[0], answer

    def get(self, path: str, headers: str = AUTH) -> tuple[int, bytes]:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
        answer = self.exchange(head.encode("latin-1"))
        return statuses(answer)[0], answer


def post(path: str, body: bytes, headers: str = AUTH) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{headers}\r\n"
    ).encode("latin-1") + body


def drain(opened: socket.socket) -> bytes:
    parts = []
    try:
        while part := opened.recv(65536):
            parts.append(part)
    except (TimeoutError, ConnectionResetError):
        pass
    return b"".join(parts)


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3})", answer)]


@contextmanager
def guarded(script: Script | None = None, **values: object) -> Iterator[Guarded]:
    """Settings are those of the server; without `api_key` there is one key, KEY."""
    keys = {"api_key": (KEY,)} | values | {"port": 0, "model": (ModelEntry("micro"),)}
    settings = Settings(**keys)  # type: ignore[arg-type]
    listeners = bind(settings)
    ready: list[Guarded] = []
    server: list[uvicorn.Server] = []
    started = threading.Event()

    async def main() -> None:
        service = TimedService(script)
        configured = Configured(settings, {})
        running = assemble(
            configured, lambda: configured, registry_of(service), 0.0, asyncio.Event()
        )
        running.lifecycle.selfchecks["micro"].looked_up = True
        config = uvicorn_config(settings, around(running), running.peers)
        server.append(listener_of(config, settings.receive_timeout, running.tls))
        port = listeners[0].getsockname()[1]
        ready.append(Guarded(port, running, service, asyncio.get_running_loop()))
        asyncio.get_running_loop().call_later(0.02, started.set)
        running.stored.start(running.guard)
        await server[0].serve(sockets=listeners)
        await asyncio.to_thread(running.stored.close)

    def work() -> None:
        try:
            run(main())
        finally:
            started.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert started.wait(20), "the server did not start"
    assert ready, "the server failed to start"
    try:
        yield ready[0]
    finally:
        server[0].should_exit = server[0].force_exit = True
        thread.join(20)
        for listener in listeners:
            listener.close()
        assert not thread.is_alive(), "the server did not stop"
