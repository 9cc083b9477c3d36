"""What stands before the app: plain ASGI, so that a stream passes through untouched.

Owns: the order of the checks, the headers that every answer has, the end of a call.
May not know: what a route does. A new one is closed until a key opens it; one that generates also
stands in `GENERATING`.
Read next: `access.py`, `incoming.py`, `gate.py`, `replay.py`, in the order in which they are asked.

    head → caller → (a generating route: is there room?) → body → idempotency → the app
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import field, replace
from typing import Any

import msgspec

from firsthand.observe.trace_context import Headers, TraceContext, given_trace
from firsthand.server.guard.access import Access, route_path, take_prefix_once
from firsthand.server.guard.call import CALL, CURRENT, GATE, OWN_CALLER, Call, Caller
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.idempotency import Replies, read_key
from firsthand.server.guard.incoming import (
    Disconnected,
    Incoming,
    IncomingLimits,
    check_head,
    check_json,
    has_body,
    receive_body,
)
from firsthand.server.guard.refusal import CLIENT_CLOSED, Refused, blocks_error, in_blocks
from firsthand.server.guard.replay import Claim, ReplyCopy, fingerprint, play
from firsthand.server.headers import (
    REQUEST_ID,
    choose_request_id,
    note_outcome,
    outcome_of,
)
from firsthand.values import dataclass

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GENERATING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/predict",
    }
)
STREAMED = frozenset({"/v1/files"})  # whose route reads the body itself, piece by piece
JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Rules:
    """What may change while the server runs (`Guard.rules`): one value, so that a reload is either
    whole or not there."""

    access: Access
    limits: IncomingLimits
    require_idempotency_key: bool = False


@dataclass(slots=True)
class Guard:
    """The app, guarded. `log` is told of every call when it has ended, `status` of its reply.
    `begin_trace` gets the headers and the arrival of one that generates."""

    app: App
    gate: Gate
    rules: Rules
    replies: Replies = field(default_factory=Replies)
    log: Callable[[Call, Scope, int, float], None] = lambda call, scope, status, now: None
    draining: Callable[[], bool] = lambda: False
    begin_trace: Callable[[Headers, float], TraceContext | None] = given_trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(choose_request_id(scope["headers"]), Caller(), self.gate.clock())
        scope.setdefault("state", {})["request_id"] = call.request_id
        CURRENT.set(call)
        answer = Answer(send, self._headers(call), call, self.gate.clock)
        incoming = Incoming(receive, scope["headers"])
        try:
            await self._guarded(scope, incoming, answer, call)
        except Disconnected:
            pass
        except Refused as refused:
            call.error_code = refused.code
            note_outcome(scope, refused.ending)
            if not answer.started:
                keeps = refused.close or await incoming.ends_soon(self.rules.limits)
                told = refused if keeps else replace(refused, close=True)
                await send_refusal(answer, told, in_blocks(route_path(scope)))
        except Exception:
            note_outcome(scope, "failed", 500)
            raise
        finally:
            call.end()
            self.log(call, scope, self._status(call, scope, answer), self.gate.clock())

    @staticmethod
    def _status(call: Call, scope: Scope, answer: Answer) -> int:
        """The status and the word for what became of the call. One that broke off in the middle has
        the status of what its client was told then."""
        found = outcome_of(scope)
        if found is None:
            call.outcome = "done" if answer.complete else "client_closed"
            return answer.status if answer.complete else CLIENT_CLOSED
        call.outcome = found.word
        return found.status or (answer.status if answer.complete else CLIENT_CLOSED)

    async def _guarded(self, scope: Scope, receive: Receive, answer: Answer, call: Call) -> None:
        rules, headers, method = self.rules, scope["headers"], scope["method"]
        target_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        check_head(target_bytes, scope["http_version"], headers, rules.limits)
        take_prefix_once(scope)
        path = route_path(scope)
        own: Caller | None = scope["state"].get(OWN_CALLER)
        call.caller = own or rules.access.caller(method, path, headers)
        generates = method == "POST" and path in GENERATING
        begin_trace = self.begin_trace if generates else given_trace
        call.trace = begin_trace(headers, call.arrived_s)
        if generates:
            self.gate.check(call)
        body, streamed = b"", method == "POST" and path in STREAMED
        if has_body(headers) and not streamed:
            body = await receive_body(receive, headers, rules.limits)
            if _header(headers, b"content-type").lower().startswith(JSON):
                check_json(body, rules.limits.max_json_depth)
        key = None if own is not None else self._idempotency_key(scope, generates, rules)
        scope.setdefault("state", {}).update({CALL: call, GATE: self.gate})
        scope["headers"] = [*_without(headers, REQUEST_ID), (REQUEST_ID, call.request_id.encode())]
        given = Given(body, receive)
        if key is None:
            await self.app(scope, receive if streamed else given, answer)
        else:
            await self._once(scope, given, answer, call, key)

    async def _once(self, scope: Scope, given: Given, answer: Answer, call: Call, key: str) -> None:
        """The app's reply, or the one that it gave to the same request before."""
        kind = _header(scope["headers"], b"content-type")
        same = fingerprint(
            scope["method"], route_path(scope), scope["query_string"], kind, given.body
        )
        tenant = call.caller.tenant
        kept = self.replies.begin(tenant, key, same, self.gate.clock())
        if kept is not None:
            call.replayed = True
            await play(kept, answer, self.replies.expires_in_s(tenant, key, self.gate.clock()))
            return
        claim = Claim(self.replies, tenant, key)
        copy = ReplyCopy(
            answer,
            self.replies.max_reply_bytes,
            self.replies.ttl_s,
            lambda: claim.settle(copy.reply(), self.gate.clock()),
        )
        try:
            await self.app(scope, given, copy)
        finally:
            claim.settle(copy.reply(), self.gate.clock())

    def _idempotency_key(self, scope: Scope, generates: bool, rules: Rules) -> str | None:
        if not generates:
            return None
        key = read_key([v for name, v in scope["headers"] if name == b"idempotency-key"])
        if key is None and rules.require_idempotency_key:
            message = "this server wants an Idempotency-Key header"
            raise Refused(400, message, "missing_idempotency_key", "Idempotency-Key")
        return key

    def _headers(self, call: Call) -> Callable[[], Iterable[tuple[str, str]]]:
        """Those of every answer, as they are when it begins."""

        def found() -> Iterable[tuple[str, str]]:
            yield "x-request-id", call.request_id
            if call.trace is not None:
                yield from call.trace.headers
            level = self.gate.level(call.queue)
            if level:
                yield "x-degradation-level", str(level)
            if call.contract is not None:
                yield "x-contract", call.contract
            if call.ignored:
                yield "x-ignored-fields", ", ".join(call.ignored)
            if call.caller.key_id:
                yield from self.gate.rates.headers(call.caller, self.gate.clock())
            if self.draining():
                yield "connection", "close"

        return found


@dataclass(slots=True)
class Answer:
    """`send`, which adds our headers and remembers how far the answer has come."""

    send: Send
    more_headers: Callable[[], Iterable[tuple[str, str]]]
    call: Call
    clock: Callable[[], float]
    headers: list[tuple[str, str]] = field(default_factory=list)
    status: int = 0
    started: bool = False
    complete: bool = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            own = [*self.more_headers(), *self.headers]
            names = {name.encode() for name, _ in own}
            kept = [pair for pair in message["headers"] if pair[0].lower() not in names]
            added = [(name.encode(), value.encode("latin-1")) for name, value in own]
            message = {**message, "headers": kept + added}
        else:
            self.call.sends(len(message.get("body", b"")), self.clock())
        await self.send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True


@dataclass(slots=True)
class Given:
    """`receive` after the body was read: the body once, then what the client does."""

    body: bytes
    receive: Receive
    _given: bool = False

    async def __call__(self) -> Message:
        if self._given:
            return await self.receive()
        self._given = True
        return {"type": "http.request", "body": self.body, "more_body": False}


async def send_refusal(send: Send, refused: Refused, blocks: bool = False) -> None:
    told = blocks_error(refused.status, refused.message) if blocks else refused.body()
    body = msgspec.json.encode(told)
    headers = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in refused.headers()]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _without(
    headers: Iterable[tuple[bytes, bytes]], unwanted: bytes
) -> Iterable[tuple[bytes, bytes]]:
    return (pair for pair in headers if pair[0] != unwanted)


def _header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")
