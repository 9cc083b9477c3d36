"""The answer to a request that is not taken: who is at fault, what to change, when to come back.

Owns: the error body, the kinds and codes that a guard gives, the headers that go with them.
May not know: HTTP framing, who refuses and why.
Read next: `gate.py`, which raises most of them.

503 is our limit, 429 the caller's; both say when to come back. The message is written for the
caller: it never holds an address, a path of ours, or what was sent.
"""

from __future__ import annotations

import math
from typing import Any

from firsthand.errors import FirsthandError
from firsthand.values import dataclass

CLIENT_CLOSED = 499  # never sent: the client went away before its answer was whole
DRAINING_RETRY_S = 5.0
# Statuses that the official client tries again by itself; of these only some heal with time.
RETRIED = frozenset({408, 409, 429})
TRANSIENT = frozenset({408, 429, 503})  # not for what was asked, but for when
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    415: "invalid_request_error",
    417: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "service_unavailable",
    504: "timeout_error",
}


@dataclass(eq=False)
class Refused(FirsthandError):
    """`retry_after_s` None: coming back does not help, and the client is told so."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    close: bool = False  # the connection cannot be used for another request
    outcome: str = ""  # what the log calls it; empty: it was refused at the door
    usage: dict[str, Any] | None = None  # of one that broke off

    def __str__(self) -> str:
        return self.message

    @property
    def kind(self) -> str:
        return KINDS.get(self.status, "server_error")

    @property
    def ending(self) -> str:
        """The word for what became of the request."""
        return self.outcome or ("refused" if self.status in TRANSIENT else "invalid")

    def body(self) -> dict[str, dict[str, Any]]:
        return error_body(self.message, self.kind, self.param, self.code, self.usage)

    def headers(self) -> list[tuple[str, str]]:
        """Those that belong to this refusal; content headers are the sender's."""
        found: list[tuple[str, str]] = []
        if self.retry_after_s is not None:
            found.append(("retry-after", str(max(1, math.ceil(self.retry_after_s)))))
            found.append(("retry-after-ms", str(math.ceil(self.retry_after_s * 1e3))))
        elif self.status in RETRIED or self.status >= 500:
            found.append(("x-should-retry", "false"))
        if self.status == 401:
            found.append(("www-authenticate", "Bearer"))
        if self.close:
            found.append(("connection", "close"))
        return found


BLOCKS = "/v1/messages"  # whose errors have Anthropic's form
BLOCKS_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def in_blocks(path: str) -> bool:
    return path == BLOCKS or path.startswith(f"{BLOCKS}/")


def blocks_error(status: int, message: str) -> dict[str, Any]:
    kind = BLOCKS_KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def client_gone() -> Refused:
    """Nobody is told: it ends the work, and names the end in log and counts."""
    return Refused(CLIENT_CLOSED, "the client is gone", "client_closed", outcome="client_closed")


def draining() -> Refused:
    """The server ends: what comes is not taken, and what still ran at the end was cut."""
    message = "the server is ending; ask again later, or elsewhere"
    return Refused(503, message, "draining", retry_after_s=DRAINING_RETRY_S)


def error_body(
    message: str,
    kind: str,
    param: str | None = None,
    code: str | None = None,
    usage: dict[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """OpenAI's shape, the only one that every client library parses. `usage` is ours: there only
    where something was computed."""
    more = {} if usage is None else {"usage": usage}
    return {"error": {"message": message, "type": kind, "param": param, "code": code, **more}}
