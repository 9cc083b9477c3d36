"""Redis Streams, by a consumer group.

Owns: how a stream's entries become messages.
May not know: what a message means.
Read next: `protocol.py`.

A consumer that comes back under its name gets first what it held. What another one held for too
long is claimed when nothing else waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from firsthand.data.queues.protocol import Message
from firsthand.errors import EngineUnavailable

HOLD_S = 60.0
BATCH = 64
BODY = b"body"  # the field of an entry; without it, all fields are the record's
BEGIN, NEW = "0", ">"


class RedisQueue:
    """`group` is the name of the consumer too: one of a group's consumers is one job."""

    def __init__(self, url: str, stream: str, group: str) -> None:
        self.hold_s = HOLD_S
        self._stream, self._group = stream, group
        self._client: Any = redis.Redis.from_url(url)
        self._mine: str | None = BEGIN  # until all that it held was read again
        with self._asking():
            try:
                self._client.xgroup_create(stream, group, id=BEGIN, mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def receive(self, timeout_s: float) -> list[Message]:
        with self._asking():
            if self._mine is not None:
                found = self._read(self._mine, None)
                self._mine = found[-1].handle.decode() if found else None
                if found:
                    return found
            found = self._read(NEW, max(1, int(timeout_s * 1000)))
            if found:
                return found
            claimed = self._client.xautoclaim(
                self._stream, self._group, self._group, int(HOLD_S * 1000), BEGIN, BATCH
            )
            return self._messages(claimed[1])

    def _read(self, behind: str, block_ms: int | None) -> list[Message]:
        streams = {self._stream: behind}
        found = self._client.xreadgroup(self._group, self._group, streams, BATCH, block_ms)
        if not found:
            return []
        pairs = found if isinstance(found, list) else list(found.items())
        return self._messages(_entries(pairs[0][1]))

    def _messages(self, entries: Sequence[Any]) -> list[Message]:
        messages = []
        for entry, fields in entries:
            if not fields:  # it was removed meanwhile
                self._client.xack(self._stream, self._group, entry)
                continue
            messages.append(Message(entry.decode(), _body(fields), entry))
        return messages

    def ack(self, handles: Sequence[Any]) -> None:
        if handles:
            with self._asking():
                self._client.xack(self._stream, self._group, *handles)

    def nack(self, handles: Sequence[Any]) -> None:
        """They stay this consumer's, which gets them first when it comes back."""

    def extend(self, handles: Sequence[Any]) -> None:
        if handles:
            with self._asking():
                self._client.xclaim(self._stream, self._group, self._group, 0, handles, justid=True)

    def lag(self) -> int | None:
        with self._asking():
            groups = self._client.xinfo_groups(self._stream)
        for one in groups:
            if one["name"] == self._group.encode():
                return None if one["lag"] is None else int(one["lag"]) + int(one["pending"])
        return None

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        with self._asking():
            pipe = self._client.pipeline(transaction=True)
            for name, body in messages:
                pipe.xadd(self._stream, {BODY: body, b"id": name.encode()})
            pipe.execute()

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise EngineUnavailable(f"redis {self._stream}: {error}") from error


def _entries(found: Any) -> Sequence[Any]:
    """A list of entries, which newer protocols put into one more list."""
    return found[0] if found and isinstance(found[0], list) else found


def _body(fields: dict[bytes, bytes]) -> bytes:
    if BODY in fields:
        return fields[BODY]
    texts = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in fields.items()
    }
    return json.dumps(texts, ensure_ascii=False).encode()
