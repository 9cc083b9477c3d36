"""What a request carries from end to end.

Owns: `X-Request-Id`: which ones are taken over, and where the request's own is kept; the caller's
deadline; where what it opened is kept, and what became of it.
May not know: bodies, routes.
Read next: `boundary.py`, which sets and returns it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import ExitStack
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

REQUEST_ID = b"x-request-id"
DEADLINE = "X-Request-Deadline-Ms"
MAX_DEADLINE_MS = 86_400_000
OPENED = "opened"
OUTCOME = "outcome"
MADE = "req-"  # so begins an id that nobody gave
_ACCEPTED = re.compile(rb"[A-Za-z0-9_-]{1,128}")


def choose_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's, if it gave one that fits; else a new one. It names the request in replies and
    logs; it is never a key of anything inside, where two callers may choose the same."""
    given = [value for name, value in headers if name == REQUEST_ID]
    if len(given) == 1 and _ACCEPTED.fullmatch(given[0]):
        return given[0].decode("ascii")
    return f"{MADE}{secrets.token_hex(12)}"


def request_id_of(scope: Scope) -> str:
    """The id that `boundary.py` gave the request."""
    request_id: str = scope.get("state", {}).get("request_id", "unknown")
    return request_id


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request that was not simply answered: a word, and the status that says so,
    also where another one had been sent before (`status` 0: the one that was sent)."""

    word: str
    status: int = 0


def note_outcome(scope: MutableMapping[str, Any], word: str, status: int = 0) -> None:
    """For the log and the count. The first one counts: what follows comes of it."""
    scope.setdefault("state", {}).setdefault(OUTCOME, Outcome(word, status))


def outcome_of(scope: Mapping[str, Any]) -> Outcome | None:
    found = scope.get("state", {}).get(OUTCOME)
    return found if isinstance(found, Outcome) else None


def timeout_of(headers: Headers) -> float | None:
    """The caller's own limit, in seconds. Raises InvalidRequest."""
    given = headers.get(DEADLINE)
    if given is None:
        return None
    if not re.fullmatch(r"[0-9]{1,8}", given, re.ASCII) or not 0 < int(given) <= MAX_DEADLINE_MS:
        raise InvalidRequest(DEADLINE, f"takes 1 to {MAX_DEADLINE_MS}")
    return int(given) / 1e3


def at_end(scope: Scope, close: Callable[[], object]) -> None:
    """Call `close` when the request has ended: answered, failed, or given up by its client.

    A generator that was never entered runs no `finally` of its own, so what must not stay open is
    not left to one.
    """
    opened = scope.get("state", {}).get(OPENED)
    if isinstance(opened, ExitStack):
        opened.callback(close)
