"""What a request carries from end to end.

Owns: `X-Request-Id`: which ones are taken over, and where the request's own is kept; where what it
opened is kept.
May not know: bodies, routes.
Read next: `boundary.py`, which sets and returns it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from starlette.types import Scope

REQUEST_ID = b"x-request-id"
OPENED = "opened"
_ACCEPTED = re.compile(rb"[A-Za-z0-9_-]{1,128}")


def choose_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's, if it gave one that fits; else a new one. It names the request in replies and
    logs; it is never a key of anything inside, where two callers may choose the same."""
    given = [value for name, value in headers if name == REQUEST_ID]
    if len(given) == 1 and _ACCEPTED.fullmatch(given[0]):
        return given[0].decode("ascii")
    return f"req-{secrets.token_hex(12)}"


def request_id_of(scope: Scope) -> str:
    """The id that `boundary.py` gave the request."""
    request_id: str = scope.get("state", {}).get("request_id", "unknown")
    return request_id


def at_end(scope: Scope, close: Callable[[], object]) -> None:
    """Call `close` when the request has ended: answered, failed, or given up by its client.

    A generator that was never entered runs no `finally` of its own, so what must not stay open is
    not left to one.
    """
    opened = scope.get("state", {}).get(OPENED)
    if isinstance(opened, ExitStack):
        opened.callback(close)
