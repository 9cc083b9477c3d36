"""NATS JetStream, by a durable pull consumer.

Owns: how a stream's messages become ours; the stream of a subject that has none is made.
May not know: what a message means.
Read next: `protocol.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

import nats
from nats.errors import Error
from nats.errors import TimeoutError as NoneCame
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

from firsthand.data.queues.asking import Asking
from firsthand.data.queues.protocol import Message

HOLD_S = 10.0
BATCH = 64
MAX_OPEN = 4096


class NatsQueue:
    """`subject` names the messages, `group` the consumer, which the server remembers."""

    def __init__(self, url: str, subject: str, group: str) -> None:
        self.hold_s = HOLD_S
        self._subject, self._group = subject, group
        self._asking = Asking("nats", subject, (Error,), self._connect(url))

    async def _connect(self, url: str) -> None:
        self._client = await nats.connect(
            url,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0.1,
            error_cb=_unheard,
        )
        self._stream: Any = self._client.jetstream()
        try:
            await self._stream.find_stream_name_by_subject(self._subject)
        except NotFoundError:
            name = self._subject.replace(".", "_").replace("*", "any").replace(">", "all")
            await self._stream.add_stream(name=name, subjects=[self._subject])
        self._pull: Any = None

    async def _subscribed(self) -> Any:
        if self._pull is None:
            config = ConsumerConfig(ack_wait=HOLD_S, max_ack_pending=MAX_OPEN)
            self._pull = await self._stream.pull_subscribe(
                self._subject, self._group, config=config
            )
        return self._pull

    def receive(self, timeout_s: float) -> list[Message]:
        return self._asking.wait(self._receive(timeout_s))

    async def _receive(self, timeout_s: float) -> list[Message]:
        found: list[Any] = []
        with suppress(NoneCame, TimeoutError):
            found = await (await self._subscribed()).fetch(BATCH, timeout=timeout_s)
        return [
            Message(f"{one.metadata.stream}:{one.metadata.sequence.stream}", one.data, one)
            for one in found
        ]

    def ack(self, handles: Sequence[Any]) -> None:
        """Confirmed by the server."""
        self._all(one.ack_sync() for one in handles)

    def nack(self, handles: Sequence[Any]) -> None:
        self._all(one.nak() for one in handles)

    def extend(self, handles: Sequence[Any]) -> None:
        self._all(one.in_progress() for one in handles)

    def lag(self) -> int | None:
        async def ask() -> int:
            found = await (await self._subscribed()).consumer_info()
            return int(found.num_pending or 0) + int(found.num_ack_pending or 0)

        return self._asking.wait(ask())

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """By the header the server leaves out a name that it had lately."""
        self._all(
            self._stream.publish(self._subject, body, headers={"Nats-Msg-Id": name})
            for name, body in messages
        )

    def close(self) -> None:
        self._asking.close(self._client.close())

    def _all(self, works: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """At once: each is a way to the server and back."""

        async def every() -> None:
            await asyncio.gather(*works)

        self._asking.wait(every())


async def _unheard(error: Exception) -> None:
    """Whoever asks next is told."""
