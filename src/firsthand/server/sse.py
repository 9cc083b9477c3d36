"""Server-sent events: the framing, the keep-alive, and the two ways in which a reader is lost.

Owns: bytes of an event, headers of a stream, its watch over the connection.
May not know: what an event says; how an answer comes to be.
Read next: `answers.py`, which gives the events.

One task writes. `send` waits while the socket's buffer is full, and with it the reading of the
engine's events, so a slow reader holds at most that buffer here; the service merges what comes
meanwhile. A second task watches: it sees the client go, sends a comment when nothing else was
sent for `ping_s`, and gives up on a write that did not move for `stall_s`. However it ends, the
events are closed, and that aborts the generation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import field

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from firsthand.errors import FirsthandError
from firsthand.server.errors import ErrorReply, internal_error, reply_and_log
from firsthand.server.guard.access import route_path
from firsthand.server.guard.call import call_of
from firsthand.server.guard.refusal import in_blocks
from firsthand.server.headers import note_outcome, request_id_of
from firsthand.values import dataclass

_LOG = logging.getLogger(__name__)
_TICK_S = 1.0

MEDIA_TYPE = "text/event-stream; charset=utf-8"
HEADERS = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_HELD = "held_stream"
encode_json = msgspec.json.Encoder().encode


def event(value: object, name: str | None = None) -> bytes:
    """One event; JSON has no line break, so that it is one line of data."""
    data = b"data: %b\n\n" % encode_json(value)
    return data if name is None else b"event: %b\n%b" % (name.encode("ascii"), data)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Seconds. A comment after `ping_s` without an event; the end after `stall_s` in which the
    client took nothing."""

    ping_s: float = 15.0
    stall_s: float = 30.0


@dataclass(slots=True)
class _Wire:
    """The connection, and when it last moved."""

    send: Send
    moved_s: float = field(default_factory=time.monotonic)
    is_sending: bool = False

    async def write(self, data: bytes, *, last: bool = False) -> None:
        self.is_sending = True
        await self.send({"type": "http.response.body", "body": data, "more_body": not last})
        self.is_sending = False
        self.moved_s = time.monotonic()


class EventStreamResponse(Response):
    """A reply of events. (A subclass, because the framework takes nothing else from a route.)

    `events` gives whole events as bytes. A fault that it raises becomes an error event, after
    which the stream is closed without [DONE].
    """

    media_type = None

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        settings: StreamSettings,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(None, 200, headers)
        self._events = events
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        if _HELD in state:
            state[_HELD] = self  # `Unwound` runs it
        else:
            await self.run(scope, receive, send)

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *own]})
        wire = _Wire(send)
        writer = asyncio.create_task(self._write(wire, scope))
        watcher = asyncio.create_task(self._watch(wire, receive, scope))
        try:
            await asyncio.wait((writer, watcher), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writer, watcher):
                task.cancel()
            await asyncio.gather(writer, watcher, return_exceptions=True)
            await self._events.aclose()
        if not writer.cancelled():
            writer.result()  # a fault of the connection itself

    async def _write(self, wire: _Wire, scope: Scope) -> None:
        try:
            async for data in self._events:
                await wire.write(data)
        except FirsthandError as fault:
            await wire.write(error_event(reply_and_log(fault, scope), scope))
        except Exception as fault:
            request_id = request_id_of(scope)
            call_of(scope).cause = type(fault).__name__
            note_outcome(scope, "failed", 500)
            _LOG.exception("request %s: unexpected fault in a stream", request_id)
            await wire.write(error_event(internal_error(request_id), scope))
        await wire.write(b"", last=True)

    async def _watch(self, wire: _Wire, receive: Receive, scope: Scope) -> None:
        """Returns when the client is gone, or takes nothing any more."""
        tick_s = min(_TICK_S, self._settings.ping_s, self._settings.stall_s)
        while True:
            try:
                async with asyncio.timeout(tick_s):
                    message = await receive()
                if message["type"] == "http.disconnect":
                    return
            except TimeoutError:
                if not await self._is_alive(wire):
                    note_outcome(scope, "stalled")
                    return

    async def _is_alive(self, wire: _Wire) -> bool:
        """False: the client took nothing for too long. Sends a comment where it is due."""
        quiet_s = time.monotonic() - wire.moved_s
        if wire.is_sending:
            return quiet_s < self._settings.stall_s
        if quiet_s >= self._settings.ping_s:
            try:
                async with asyncio.timeout(self._settings.stall_s):
                    await wire.write(PING)
            except TimeoutError:
                return False
        return True


class Unwound:
    """Plain ASGI around the routes: a stream begins when the route and all that the framework put
    around it have returned. It may be open for long, and would hold them meanwhile: some twenty
    frames, three stacks and the checked body, which is as much memory as the rest of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        state[_HELD] = None
        num_names = len(scope)
        await self._app(scope, receive, send)
        held: EventStreamResponse | None = state.pop(_HELD)
        if held is not None:
            for name in list(scope)[num_names:]:
                if name != "route":  # by whose path it is counted
                    del scope[name]
            await held.run(scope, receive, send)


def error_event(reply: ErrorReply, scope: Scope) -> bytes:
    told = reply.told(scope)
    return event(told, "error" if in_blocks(route_path(scope)) else None)
