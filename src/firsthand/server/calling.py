"""A call of the application without a socket: one request, and its whole reply.

Owns: how such a request looks to the application.
May not know: what is asked, which routes there are.
Read next: `inside.py` and `stored/asking.py`, which ask so.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Scope

from firsthand.data.engines import Reply
from firsthand.data.identity import trace_parent
from firsthand.server.guard.call import OWN_CALLER, Caller

AHEAD = 2  # requests per place in the batch, so that a free place is taken in the next step


async def asked(
    app: ASGIApp,
    method: str,
    path: str,
    content: bytes | None,
    request_id: str,
    own: Caller | None = None,
) -> Reply:
    """One request, and its whole reply. `own`: in whose name it passes a guard."""
    headers = [(b"host", b"localhost"), (b"x-request-id", request_id.encode("ascii"))]
    if (parent := trace_parent(request_id)) is not None:
        headers.append((b"traceparent", parent.encode("ascii")))
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
        "state": {} if own is None else {OWN_CALLER: own},
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
