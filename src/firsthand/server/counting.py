"""Each request is counted when its reply has ended.

Owns: the labels of `firsthand_requests_total`, and what an endpoint is called; `finish_reason` is
that of the answer, or the word for what came between. May not know: routes.
Read next: `../observe/metrics.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firsthand.observe.metrics import Metrics
from firsthand.server.guard.refusal import CLIENT_CLOSED
from firsthand.server.headers import outcome_of

OTHER = "other"


class Counting:
    """Plain ASGI around the routes."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, whole = 500, False

        async def watched(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            endpoint = endpoint_of(scope)
            reason = scope.get("state", {}).get("finish_reason", "")
            outcome = outcome_of(scope)
            if outcome is not None and outcome.word != "invalid":
                reason = outcome.word
                status = outcome.status or status
            shown = status if whole or status >= 500 else CLIENT_CLOSED
            if shown == CLIENT_CLOSED:
                reason = reason if outcome is not None else "client_closed"
                self._metrics.cancelled.labels("client").inc()
            self._metrics.requests.labels(endpoint, str(shown), reason).inc()


def endpoint_of(scope: Mapping[str, Any]) -> str:
    """The form of the route; one label for all paths that none has, or that came to none."""
    found: str = getattr(scope.get("route"), "path", OTHER)
    return found
