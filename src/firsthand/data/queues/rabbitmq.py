"""RabbitMQ: a durable queue, each message acknowledged by itself, each sending confirmed.

Owns: how deliveries become messages.
May not know: what a message means.
Read next: `protocol.py`.

A message is named by its `message_id`; one without is named by its content, so that two of equal
content are one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity

from firsthand.data.queues.asking import Asking
from firsthand.data.queues.protocol import Message

HOLD_S = 600.0  # the server itself waits for half an hour
BATCH = 64
MAX_OPEN = 4096


class RabbitQueue:
    """Closing gives back what is open, at its place."""

    def __init__(self, url: str, queue: str) -> None:
        self.hold_s = HOLD_S
        self._name = queue
        self._came: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        self._consumes = False
        self._asking = Asking("rabbitmq", queue, (AMQPError,), self._connect(url))

    async def _connect(self, url: str) -> None:
        self._connection = await aio_pika.connect(url)
        self._channel = await self._opened()
        try:
            self._queue = await self._channel.get_queue(self._name)
        except ChannelNotFoundEntity:  # which has closed the channel
            self._channel = await self._opened()
            self._queue = await self._channel.declare_queue(self._name, durable=True)

    async def _opened(self) -> AbstractChannel:
        channel = await self._connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=MAX_OPEN)
        return channel

    def receive(self, timeout_s: float) -> list[Message]:
        return self._asking.wait(self._receive(timeout_s))

    async def _receive(self, timeout_s: float) -> list[Message]:
        if self._connection.is_closed or self._channel.is_closed:
            raise ConnectionError("the connection was closed")
        if not self._consumes:
            self._consumes = True
            await self._queue.consume(self._came.put)
        found = []
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                found.append(await self._came.get())
        while found and len(found) < BATCH and not self._came.empty():
            found.append(self._came.get_nowait())
        return [Message(_name_of(one), one.body, one) for one in found]

    def ack(self, handles: Sequence[Any]) -> None:
        self._asking.each(one.ack() for one in handles)

    def nack(self, handles: Sequence[Any]) -> None:
        self._asking.each(one.reject(requeue=True) for one in reversed(handles))

    def extend(self, handles: Sequence[Any]) -> None:
        """The server gives them to nobody else as long as the connection lives."""

    def lag(self) -> int | None:
        """Those that wait; what a dead connection held is among them."""

        async def ask() -> int:
            found = await self._channel.declare_queue(self._name, passive=True)
            return int(found.declaration_result.message_count or 0)

        return self._asking.wait(ask())

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        exchange = self._channel.default_exchange
        self._asking.each(
            exchange.publish(
                aio_pika.Message(
                    body, message_id=name, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
                ),
                routing_key=self._name,
            )
            for name, body in messages
        )

    def close(self) -> None:
        self._asking.close(self._connection.close())


def _name_of(message: AbstractIncomingMessage) -> str:
    return message.message_id or "sha256:" + hashlib.sha256(message.body).hexdigest()
