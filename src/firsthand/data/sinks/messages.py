"""Outputs as messages of a queue, each under its own id.

Owns: nothing but the count.
May not know: any one kind of queue.
Read next: `../queues/protocol.py`.

A crash between the queue and the ledger sends the messages of one step again, under the same ids:
a queue that keeps ids leaves them out, and another one's reader can.
"""

from __future__ import annotations

from typing import Any

from firsthand.data.queues.protocol import Queue


class MessageSink:
    def __init__(self, queue: Queue, name: str, state: Any) -> None:
        self.name = name
        self._queue = queue
        self._count = state or 0
        self._waiting: list[tuple[str, bytes]] = []

    def add(self, identity: bytes, line: bytes) -> tuple[int, int]:
        self._waiting.append((identity.hex(), line))
        return self._count + len(self._waiting) - 1, len(line)

    def flush(self) -> Any:
        self._queue.send(self._waiting)
        self._count += len(self._waiting)
        self._waiting = []
        return self._count

    def close(self) -> None:
        self._queue.close()
