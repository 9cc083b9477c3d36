"""Kafka, by a consumer group whose offsets are committed by us alone.

Owns: how a topic's messages become ours.
May not know: what a message means.
Read next: `protocol.py`.

Messages are acknowledged in the order of their delivery, so the last one of a partition stands for
all before it. What was not acknowledged is read again from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from firsthand.data.queues.protocol import Message
from firsthand.errors import EngineUnavailable

HOLD_S = 3600.0
BATCH = 64
DEAD_S = 6.0  # after which the group forgets a consumer that says nothing
JOIN_S = 20.0
SEND_S = 30.0


class KafkaQueue:
    """`servers`: host:port, by commas."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        self.hold_s = HOLD_S
        self._servers, self._topic, self._group = servers, topic, group
        self._lock = threading.Lock()  # of the consumer, which closes only once
        self._consumer: Any = None
        self._producer: Any = None
        self._assigned = False

    def receive(self, timeout_s: float) -> list[Message]:
        with self._lock:
            if self._consumer is None:
                self._consumer = Consumer(
                    {
                        "bootstrap.servers": self._servers,
                        "group.id": self._group,
                        "enable.auto.commit": False,
                        "auto.offset.reset": "earliest",
                        "session.timeout.ms": int(DEAD_S * 1000),
                        "max.poll.interval.ms": int(HOLD_S * 1000),
                    }
                )
                self._consumer.subscribe([self._topic], on_assign=self._on_assign)
            found = self._consumer.consume(BATCH, timeout_s)
            until_s = time.monotonic() + JOIN_S
            while not found and not self._assigned and time.monotonic() < until_s:
                found = self._consumer.consume(BATCH, timeout_s)
        messages = []
        for one in found:
            if one.error() is not None:
                raise EngineUnavailable(f"kafka {self._topic}: {one.error()}")
            place = (one.topic(), one.partition(), one.offset())
            messages.append(Message(":".join(map(str, place)), one.value() or b"", place))
        return messages

    def _on_assign(self, consumer: Any, partitions: Any) -> None:
        """Before the group has given us partitions, silence is not the end."""
        self._assigned = True

    def ack(self, handles: Sequence[Any]) -> None:
        last = {(topic, partition): offset for topic, partition, offset in handles}
        if last:
            offsets = [TopicPartition(*place, offset + 1) for place, offset in last.items()]
            with self._lock:
                self._asked(lambda: self._consumer.commit(offsets=offsets, asynchronous=False))

    def nack(self, handles: Sequence[Any]) -> None:
        """Their offsets are not committed."""

    def extend(self, handles: Sequence[Any]) -> None:
        """The group has an hour between two reads."""

    def lag(self) -> int | None:
        """Of the partitions that are ours."""
        with self._lock:
            if self._consumer is None:
                return None
            try:
                return self._lag()
            except KafkaException as error:
                raise EngineUnavailable(f"kafka {self._topic}: {error}") from error

    def _lag(self) -> int:
        total = 0
        for one in self._consumer.committed(self._consumer.assignment(), timeout=SEND_S):
            low, high = self._consumer.get_watermark_offsets(one, timeout=SEND_S)
            total += high - (one.offset if one.offset >= 0 else low)
        return total

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        if self._producer is None:
            self._producer = Producer(
                {"bootstrap.servers": self._servers, "enable.idempotence": True, "acks": "all"}
            )
        faults: list[Any] = []
        for name, body in messages:
            self._asked(
                lambda name=name, body=body: self._producer.produce(
                    self._topic, body, name, on_delivery=lambda error, _: faults.append(error)
                )
            )
            self._producer.poll(0)
        left = self._producer.flush(SEND_S)
        fault = next((one for one in faults if one is not None), None)
        if left or fault is not None:
            raise EngineUnavailable(f"kafka {self._topic}: {fault or f'{left} were not sent'}")

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()

    def _asked(self, work: Any) -> None:
        try:
            work()
        except (KafkaException, BufferError) as error:
            raise EngineUnavailable(f"kafka {self._topic}: {error}") from error
