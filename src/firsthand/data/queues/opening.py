"""From a job's words to a queue.

Owns: the choice; a client library is loaded when a job names its kind.
May not know: messages; sources and sinks.
Read next: `protocol.py`, `sqlite.py`.
"""

from __future__ import annotations

from pathlib import Path

from firsthand.data.job import Place
from firsthand.data.queues.protocol import Queue
from firsthand.errors import InvalidRequest


def open_queue(part: Place, folder: Path) -> Queue:
    """Raises SourceRefused, EngineUnavailable, InvalidRequest."""
    url, name = str(part.url), str(part.name)
    group = getattr(part, "group", "firsthand")
    match part.kind:
        case "redis":
            from firsthand.data.queues.redis import RedisQueue

            return RedisQueue(_begins(url, "redis", "rediss", "unix"), name, group)
        case "rabbitmq":
            from firsthand.data.queues.rabbitmq import RabbitQueue

            return RabbitQueue(_begins(url, "amqp", "amqps"), name)
        case "nats":
            from firsthand.data.queues.nats import NatsQueue

            return NatsQueue(_begins(url, "nats", "tls"), name, group)
        case "kafka":
            from firsthand.data.queues.kafka import KafkaQueue

            return KafkaQueue(_rest(_begins(url, "kafka")).lstrip("/"), name, group)
        case _:
            from firsthand.data.queues.sqlite import SqliteQueue

            return SqliteQueue(folder / _rest(_begins(url, "sqlite")), name, group)


def _begins(url: str, *schemes: str) -> str:
    """Raises InvalidRequest."""
    if url.partition(":")[0] not in schemes:
        kinds = " or ".join(f"{one}:" for one in schemes)
        raise InvalidRequest("url", f"of this kind begins with {kinds}")
    return url


def _rest(url: str) -> str:
    return url.partition(":")[2]
