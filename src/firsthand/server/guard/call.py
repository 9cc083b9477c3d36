"""One HTTP request as the guard sees it: who calls, since when, and what the log will say of it.

Owns: `Caller`, `Call`, and how a route finds its call, or a line of the log.
May not know: bodies, text, how a caller was recognised.
Read next: `keys.py`; `middleware.py` makes a `Call` for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import field
from typing import Any

from firsthand.cascade.decision import Told
from firsthand.observe.records import Arrival
from firsthand.observe.trace_context import TraceContext
from firsthand.request import Priority
from firsthand.values import dataclass

CALL = "call"  # its name in the ASGI scope's state
GATE = "gate"
OWN_CALLER = "own_caller"  # there: who asks from within this server, in whose name


@dataclass(frozen=True, slots=True)
class Quota:
    """What one key may take; 0 is no limit. Tokens are those of prompt and answer."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `key_id` is a hash's beginning, never the key; empty where there are no keys.

    `cache_salt` keeps callers from finding each other's cached prefixes by their speed. `account`:
    whose rates and shares it takes, where they are not the key's own.
    """

    key_id: str = ""
    name: str = ""
    cache_salt: str = ""
    highest_priority: Priority = Priority.URGENT
    quota: Quota = Quota()
    account: str = ""

    @property
    def tenant(self) -> str:
        return self.account or self.key_id


@dataclass(slots=True)
class Call:
    """Made by the guard, filled by the route; what is still None is left out of the log line."""

    request_id: str
    caller: Caller
    arrived_s: float
    model: str | None = None
    queue: str | None = None  # the name of the model whose queue it asked for
    priority: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    itl_ms_p50: float | None = None
    batch_max: int | None = None
    preemptions: int | None = None
    manifest: str | None = None
    contract: str | None = None
    trace: TraceContext | None = None
    arrival: Arrival | None = None  # once something of it was submitted
    sent_bytes: int = 0
    first_sent_s: float | None = None
    cause: str | None = None  # of a failure, for the operator alone
    error_code: str | None = None
    outcome: str | None = None
    replayed: bool = False
    cascade: Told | None = None
    said: dict[str, Any] = field(default_factory=dict)  # and is noted; see `asides.py`
    ignored: list[str] = field(default_factory=list)
    attempt_ms: float = 0.0  # of a cascade's small model, before the large one was asked
    at_end: list[Callable[[], None]] = field(default_factory=list)

    def arrives(self, endpoint: str, model: str, *, streams: bool = False) -> Arrival:
        """For the recorder: the same value for all that the request submits."""
        if self.arrival is None:
            whose = self.caller.key_id
            asides = dict(self.said), tuple(self.ignored)
            self.arrival = Arrival(
                self.request_id, whose, endpoint, model, self.arrived_s, streams, *asides
            )
        return self.arrival

    def sends(self, num_bytes: int, now_s: float) -> None:
        """So many bytes of the reply's body are handed to the connection."""
        if num_bytes and self.first_sent_s is None:
            self.first_sent_s = now_s
        self.sent_bytes += num_bytes

    def forget_answer(self) -> None:
        """What is known of it is of one that nobody gets."""
        self.finish_reason = self.batch_max = None
        self.queue_ms = self.ttft_ms = self.itl_ms_p50 = None

    def end(self) -> None:
        """For the guard: the exchange is over, whatever became of the route; what the call holds
        is given back."""
        while self.at_end:
            self.at_end.pop()()


def call_of(scope: Mapping[str, Any], now: float = 0.0) -> Call:
    """The call of an ASGI scope; an anonymous one where no guard stands before the app."""
    state = scope.get("state")
    found = state.get(CALL) if isinstance(state, Mapping) else None
    return found if isinstance(found, Call) else Call("", Caller(), now)


# The call in whose task something happens, for the log.
CURRENT: ContextVar[Call | None] = ContextVar("call", default=None)
