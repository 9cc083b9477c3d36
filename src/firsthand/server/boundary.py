"""The application's edge, within the guard: each reply has its request's id, no fault leaves
without our body, and nothing that a request opened outlives it.

Owns: `X-Request-Id` on every reply; the reply to a fault that nobody expected; its log line; the
stack of what is closed when the request has ended, however it did.
May not know: routes, bodies, what the application inside does.
Read next: `errors.py`.

Plain ASGI: nothing stands between a stream and its socket.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firsthand.server.errors import internal_error
from firsthand.server.headers import OPENED, REQUEST_ID, choose_request_id, request_id_of

_LOG = logging.getLogger(__name__)


class Boundary:
    """Wraps the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        if "request_id" not in state:  # no guard has chosen it, as on the admin socket
            state["request_id"] = choose_request_id(scope["headers"])
        started = complete = False

        async def send_with_id(message: Message) -> None:
            nonlocal started, complete
            if message["type"] == "http.response.start":
                started = True
                header = (REQUEST_ID, request_id_of(scope).encode("ascii"))  # a body may name it
                message = {**message, "headers": [*message.get("headers", ()), header]}
            else:
                complete = not message.get("more_body", False)
            await send(message)

        try:
            with ExitStack() as opened:
                state[OPENED] = opened
                await self._app(scope, receive, send_with_id)
        except Exception:
            request_id = request_id_of(scope)
            _LOG.exception("request %s: unexpected fault", request_id)
            if complete:
                return
            if started:  # half a reply: all that is left is to close the connection
                raise
            await internal_error(request_id).response(scope)(scope, receive, send_with_id)
