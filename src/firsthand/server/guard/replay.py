"""Idempotency around an ASGI app: the first request is recorded, a repeated one is played back.

Owns: what makes two requests equal, what of a reply is kept, when a reply counts as whole.
May not know: where replies are kept, what they say.
Read next: `idempotency.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import field
from typing import Any

from firsthand.server.guard.idempotency import Replies, Reply
from firsthand.values import dataclass

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

# Of one exchange, not of the reply: they are made anew.
_NOT_KEPT = frozenset({b"x-request-id", b"date", b"connection", b"server-timing"})
_STREAM_FAILED = b'data: {"error"'
REPLAYED = (b"idempotency-replayed", b"true")


def fingerprint(method: str, path: str, query: bytes, content_type: bytes, body: bytes) -> bytes:
    """Equal for equal requests. The payload is compared byte by byte: two that mean the same in
    different words are two."""
    digest = hashlib.sha256()
    for part in (method.encode(), path.encode("utf-8", "surrogatepass"), query, content_type, body):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


@dataclass(slots=True)
class ReplyCopy:
    """Passes a reply on and keeps a copy, as long as it is not too large to be kept. `whole` is
    called before the last of it is passed on: a client that has it may ask again at once."""

    send: Send
    max_bytes: int
    ttl_s: float  # for which a reply is kept
    whole: Callable[[], None] = lambda: None
    status: int = 0
    complete: bool = False
    _headers: tuple[tuple[bytes, bytes], ...] = ()
    _chunks: list[bytes] = field(default_factory=list)
    _num_bytes: int = 0
    _failed: bool = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._headers = tuple((bytes(n), bytes(v)) for n, v in message["headers"])
            if self._succeeds:
                message = {**message, "headers": [*self._headers, _expires_in(self.ttl_s)]}
        else:
            self._note(bytes(message.get("body", b"")))
            self.complete = not message.get("more_body", False)
            if self.complete:
                self.whole()
        await self.send(message)

    def _note(self, chunk: bytes) -> None:
        self._failed |= _STREAM_FAILED in chunk
        self._num_bytes += len(chunk)
        if self._num_bytes > self.max_bytes:
            self._failed = True
        if self._failed:
            self._chunks.clear()
        elif chunk:
            self._chunks.append(chunk)

    @property
    def _succeeds(self) -> bool:
        return 200 <= self.status < 300

    def reply(self) -> Reply | None:
        """None: not whole, not a success, or too large."""
        if not self.complete or self._failed or not self._succeeds:
            return None
        kept = tuple(pair for pair in self._headers if pair[0].lower() not in _NOT_KEPT)
        return Reply(self.status, kept, tuple(self._chunks))


@dataclass(slots=True)
class Claim:
    """The first request with a key. `settle` it, whatever became of the reply; the first time
    counts."""

    replies: Replies
    tenant: str
    key: str
    _settled: bool = False

    def settle(self, reply: Reply | None, now: float) -> None:
        if self._settled:
            return
        self._settled = True
        if reply is None:
            self.replies.forget(self.tenant, self.key)
        else:
            self.replies.keep(self.tenant, self.key, reply, now)


def _expires_in(seconds: float) -> tuple[bytes, bytes]:
    return b"idempotency-expires-in", b"%d" % max(0, math.ceil(seconds))


async def play(reply: Reply, send: Send, expires_in_s: float) -> None:
    start: Message = {
        "type": "http.response.start",
        "status": reply.status,
        "headers": [*reply.headers, REPLAYED, _expires_in(expires_in_s)],
    }
    await send(start)
    for chunk in reply.chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
