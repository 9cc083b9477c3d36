"""A real server on a port of its own, in a thread, for as long as a test needs it.

Owns: `Running`, and a raw socket to it. May not know: what is served. Read next: `conftest.py`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import uvicorn
from starlette.types import ASGIApp

from firsthand.server.starting import run

T = TypeVar("T")


class Running:
    """`url` of the server, and its loop, where everything of the app happens."""

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.loop = loop

    def call(self, action: Callable[[], Awaitable[T]]) -> T:
        """Run on the server's loop, and wait for it."""

        async def run() -> T:
            return await action()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        opened = socket.socket()
        if receive_buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        opened.settimeout(10)
        opened.connect(("127.0.0.1", self.port))
        return opened


@contextmanager
def serving(
    make: Callable[[], Awaitable[ASGIApp]], close: Callable[[], Awaitable[None]] | None = None
) -> Iterator[Running]:
    """`make` builds the app on the loop that will serve it; `close` runs there at the end."""
    listener = socket.socket()
    # Small buffers, which the connections inherit: a slow reader is felt after kilobytes.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    listener.bind(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    ready: list[tuple[uvicorn.Server, asyncio.AbstractEventLoop]] = []
    started, failed = threading.Event(), []

    async def main() -> None:
        try:
            config = uvicorn.Config(
                await make(),
                http="httptools",
                loop="asyncio",
                lifespan="off",
                access_log=False,
                log_level="error",
                timeout_graceful_shutdown=1,
            )
            server = uvicorn.Server(config)
            ready.append((server, asyncio.get_running_loop()))
            asyncio.get_running_loop().call_later(0.05, started.set)
            await server.serve(sockets=[listener])
        except BaseException as fault:
            failed.append(fault)
            started.set()
            raise
        finally:
            if close is not None:
                await close()

    thread = threading.Thread(target=lambda: run(main()), daemon=True)
    thread.start()
    assert started.wait(120), "the server did not start"
    if failed:
        raise failed[0]
    server, loop = ready[0]
    try:
        yield Running(port, loop)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


def post(path: str, body: bytes, *, headers: str = "") -> bytes:
    """The bytes of a request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{headers}\r\n"
    ).encode() + body
