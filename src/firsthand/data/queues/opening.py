"""From a job's words to a queue.

Owns: the choice; a client library is loaded when a job names its kind.
May not know: how any of them works.
Read next: `protocol.py`, `sqlite.py`.
"""

from __future__ import annotations

from pathlib import Path

from firsthand.data.job import Place
from firsthand.data.queues.protocol import Queue
from firsthand.errors import InvalidRequest

SCHEMES = {
    "queue": ("sqlite",),
    "redis": ("redis", "rediss", "unix"),
    "rabbitmq": ("amqp", "amqps"),
    "nats": ("nats", "tls"),
    "kafka": ("kafka",),
}


def open_queue(part: Place, folder: Path) -> Queue:
    """Raises SourceRefused, EngineUnavailable, InvalidRequest."""
    url, name = str(part.url), str(part.name)
    group = getattr(part, "group", "firsthand")
    scheme, _, rest = url.partition(":")
    if scheme not in SCHEMES.get(str(part.kind), ()):
        kinds = " or ".join(f"{one}:" for one in SCHEMES.get(str(part.kind), ()))
        raise InvalidRequest("url", f"of kind {part.kind} begins with {kinds}")
    if part.kind == "queue":
        from firsthand.data.queues.sqlite import SqliteQueue

        return SqliteQueue(folder / rest, name, group)
    if part.kind == "redis":
        from firsthand.data.queues.redis import RedisQueue

        return RedisQueue(url, name, group)
    if part.kind == "rabbitmq":
        from firsthand.data.queues.rabbitmq import RabbitQueue

        return RabbitQueue(url, name)
    if part.kind == "nats":
        from firsthand.data.queues.nats import NatsQueue

        return NatsQueue(url, name, group)
    from firsthand.data.queues.kafka import KafkaQueue

    return KafkaQueue(rest.lstrip("/"), name, group)
