"""A repeated request gives the reply of the first one: the store behind `Idempotency-Key`.

Owns: which keys are in progress, the replies that are kept, for how long and how many.
May not know: HTTP; a reply is a status, headers and the chunks of a body, streams included.
Read next: `replay.py`, which stands it before the app.

A key belongs to one caller. It is in memory only: after a restart it is unknown. Only whole
successful replies are kept; whatever failed, was cut or was too large is forgotten, and a repeated
request is then computed again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from firsthand.server.guard.refusal import Refused
from firsthand.values import dataclass

MAX_KEY_CHARS = 255
SHARE_OF_LAST = 0.2  # of a request in what is typical
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # a string of structured fields
_BARE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    chunks: tuple[bytes, ...]

    @property
    def num_bytes(self) -> int:
        head = sum(len(name) + len(value) for name, value in self.headers)
        return head + sum(map(len, self.chunks))


@dataclass(slots=True)
class _Entry:
    fingerprint: bytes
    expires_s: float
    began_s: float
    reply: Reply | None = None


@dataclass(slots=True)
class Replies:
    """Keeps at most `max_entries` keys and `max_bytes` of replies; the oldest reply goes first.
    `ttl_s` is how long a reply is kept after it was complete."""

    ttl_s: float = 3600.0
    max_entries: int = 4096
    max_bytes: int = 64 << 20
    _entries: dict[tuple[str, str], _Entry] = field(default_factory=dict)
    num_bytes: int = 0
    _typical_s: float = 0.0  # from a first request to its reply, lately

    @property
    def max_reply_bytes(self) -> int:
        """What is larger is not kept: one reply must not drive out all the others."""
        return self.max_bytes // 8

    def begin(self, tenant: str, key: str, fingerprint: bytes, now: float) -> Reply | None:
        """The reply that is kept; None: the caller is the first, and must end with `keep` or
        `forget`. Raises Refused: 409 while the first is running, 422 for another payload."""
        self._expire(now)
        entry = self._entries.get((tenant, key))
        if entry is not None:
            if entry.fingerprint != fingerprint:
                message = "this Idempotency-Key was used for another request"
                raise Refused(422, message, "idempotency_key_reused", "Idempotency-Key")
            if entry.reply is None:
                message = "the first request with this Idempotency-Key is still running"
                wait_s = max(1.0, self._typical_s - (now - entry.began_s))
                raise Refused(409, message, "idempotency_in_progress", "Idempotency-Key", wait_s)
            return entry.reply
        if len(self._entries) >= self.max_entries and not self._drop_oldest():
            raise Refused(503, "too many keys are in progress", "queue_full", None, 1.0)
        self._entries[tenant, key] = _Entry(fingerprint, float("inf"), now)
        return None

    def expires_in_s(self, tenant: str, key: str, now: float) -> float:
        """Of a reply that is kept."""
        return self._entries[tenant, key].expires_s - now

    def keep(self, tenant: str, key: str, reply: Reply, now: float) -> None:
        entry = self._entries.pop((tenant, key))
        took_s = now - entry.began_s
        self._typical_s += (took_s - self._typical_s) * (SHARE_OF_LAST if self._typical_s else 1.0)
        if reply.num_bytes > self.max_reply_bytes:
            return
        while self.num_bytes + reply.num_bytes > self.max_bytes and self._drop_oldest():
            pass
        entry.reply, entry.expires_s = reply, now + self.ttl_s
        self._entries[tenant, key] = entry  # at the end: the dictionary is in order of expiry
        self.num_bytes += reply.num_bytes

    def forget(self, tenant: str, key: str) -> None:
        """The first request came to nothing; the next one with this key is the first again."""
        entry = self._entries.get((tenant, key))
        if entry is not None and entry.reply is None:
            del self._entries[tenant, key]

    def __len__(self) -> int:
        return len(self._entries)

    def _expire(self, now: float) -> None:
        while (oldest := self._oldest()) is not None and self._entries[oldest].expires_s <= now:
            self._drop(oldest)

    def _drop_oldest(self) -> bool:
        oldest = self._oldest()
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _oldest(self) -> tuple[str, str] | None:
        return next((key for key, entry in self._entries.items() if entry.reply is not None), None)

    def _drop(self, key: tuple[str, str]) -> None:
        reply = self._entries.pop(key).reply
        self.num_bytes -= 0 if reply is None else reply.num_bytes


def read_key(values: Sequence[bytes]) -> str | None:
    """The key of a request's `Idempotency-Key` headers: quoted, as the draft has it, or bare.

    None without the header. Raises Refused with 400.
    """
    if not values:
        return None
    text = values[0].decode("latin-1").strip()
    quoted = _QUOTED.fullmatch(text)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text
    good = quoted or (_BARE.fullmatch(text) and '"' not in text)
    if len(values) > 1 or not good or not 1 <= len(key) <= MAX_KEY_CHARS:
        message = f"takes one key of 1 to {MAX_KEY_CHARS} printable ASCII characters"
        raise Refused(400, f"Idempotency-Key {message}", "invalid_value", "Idempotency-Key")
    return key
