"""The server's routes without a socket: a model in this process's care, asked as over HTTP.

Owns: the engine of such a model, and a call of the app.
May not know: what is asked.
Read next: `app.py`; `../data/engines.py`, whose protocol this keeps.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import suppress

from starlette.types import ASGIApp, Message, Scope

from firsthand.data.engines import Reply
from firsthand.data.loop import Loop
from firsthand.generation.service import Service, ServiceOptions
from firsthand.observe.metrics import Metrics
from firsthand.server.app import build_app
from firsthand.server.house import House
from firsthand.version import VERSION

AHEAD = 2  # requests per place in the batch, so that a free place is taken in the next step


class InsideEngine:
    """Raises what a load raises: ModelNotFound, CheckpointError, CapacityExceeded, …"""

    def __init__(self, options: ServiceOptions, width: int | None = None) -> None:
        self._loop = Loop("inside")
        self._service: Service | None = None
        try:
            self._app = self._loop.wait(self._start(options))
        except BaseException:
            self.close()
            raise
        self.width = width or max(1, AHEAD * self._max_sequences)

    def ask(self, method: str, path: str, content: bytes | None, request_id: str) -> Future[Reply]:
        return self._loop.begin(asked(self._app, method, path, content, request_id))

    def close(self) -> None:
        """Who still asks is told by the engine's end. May be called again."""
        if not self._loop.is_closed and self._service is not None:
            self._loop.wait(self._service.close())
        self._loop.close()

    async def _start(self, options: ServiceOptions) -> ASGIApp:
        self._service = await Service.start(options)
        await self._service.wait_ready()
        model = self._service.model
        self._max_sequences = model.max_sequences
        return build_app(House({model.name: self._service}, Metrics(), version=VERSION))


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
