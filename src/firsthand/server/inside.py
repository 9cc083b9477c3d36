"""The server's routes without a socket: a model in this process's care, asked as over HTTP.

Owns: the loop and the engine of such a model, and a call of the app.
May not know: what is asked.
Read next: `app.py`; `../data/engines.py`, whose protocol this keeps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Scope

from firsthand.data.engines import Reply
from firsthand.generation.service import Service, ServiceOptions
from firsthand.observe.metrics import Metrics
from firsthand.server.app import build_app
from firsthand.server.house import House
from firsthand.version import VERSION

T = TypeVar("T")
AHEAD = 2  # requests per place in the batch, so that a free place is taken in the next step


class InsideEngine:
    """Raises what a load raises: ModelNotFound, CheckpointError, CapacityExceeded, …"""

    def __init__(self, options: ServiceOptions, width: int | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="inside", daemon=True)
        self._thread.start()
        self._service: Service | None = None
        try:
            self._app = self._wait(self._start(options))
        except BaseException:
            self.close()
            raise
        self.width = width or max(1, AHEAD * self._max_sequences)

    def ask(self, method: str, path: str, content: bytes | None, request_id: str) -> Future[Reply]:
        call = asked(self._app, method, path, content, request_id)
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        """May be called again."""
        if self._loop.is_closed():
            return
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self, options: ServiceOptions) -> ASGIApp:
        self._service = await Service.start(options)
        await self._service.wait_ready()
        model = self._service.model
        self._max_sequences = model.max_sequences
        return build_app(House({model.name: self._service}, Metrics(), version=VERSION))

    async def _end(self) -> None:
        """Who still asks is told by the engine's end."""
        if self._service is not None:
            await self._service.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def asked(
    app: ASGIApp, method: str, path: str, content: bytes | None, request_id: str
) -> Reply:
    """One request, and its whole reply."""
    headers = [(b"x-request-id", request_id.encode("ascii"))]
    if content is not None:
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode("ascii")),
        ]
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": b"",
        "headers": headers,
        "server": None,
        "client": None,
    }
    body = [content or b""]
    status, parts, after = 502, list[bytes](), list[bytes]()
    never = asyncio.Event()

    async def receive() -> Message:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            after.extend(value for name, value in message["headers"] if name == b"retry-after")
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    later_s = None
    with suppress(ValueError):
        later_s = float(after[0]) if after else None
    return Reply(status, b"".join(parts), later_s)
