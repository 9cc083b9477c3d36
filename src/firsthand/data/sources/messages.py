"""Messages of a queue: acknowledged when what came of them is durable, never before.

Owns: which messages are open, how long a silence is the end, and what happens to the open ones.
May not know: any one kind of queue.
Read next: `../queues/protocol.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from firsthand.data.encoding import declared
from firsthand.data.job import SourcePart
from firsthand.data.queues.protocol import Message, Queue
from firsthand.data.record import Position, Reason, Record, Rejected
from firsthand.data.source import Flaw, Limits, SourceFacts, decoded, refused, too_long_flaw
from firsthand.data.sources.jsonl import parse_object

RECEIVE_S = 0.5
UTF8 = declared("utf-8")


class MessageSource:
    """`done` and `check` may come from another thread than the one that reads."""

    def __init__(
        self,
        waiting: Queue,
        name: str,
        part: SourcePart,
        after: Position,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.facts = SourceFacts(str(part.kind), name, encoding=UTF8, live=True)
        self._queue = waiting
        self._idle_s = None if part.follow else part.idle_s
        self._record = after.record
        self._clock = clock
        self._limits = Limits()
        self._lock = threading.Lock()
        self._open: dict[str, list[Any]] = {}
        self._extended_s = clock()
        self._closing = False

    def __iter__(self) -> Iterator[Record | Rejected]:
        heard_s = self._clock()
        while not self._closing:
            silent_s = self._clock() - heard_s
            if self._idle_s is not None and silent_s >= self._idle_s and self._is_empty():
                return
            wait_s = RECEIVE_S if self._idle_s is None else min(RECEIVE_S, self._idle_s)
            messages = self._queue.receive(wait_s)
            with self._lock:
                for message in messages:
                    self._open.setdefault(message.name, []).append(message.handle)
            for message in messages:
                self._record += 1
                yield self._read(message)
            if messages:
                heard_s = self._clock()

    def _read(self, message: Message) -> Record | Rejected:
        body = message.body
        position = Position(self._record, self._record, 0, len(body), 1, message.name)
        try:
            if len(body) > self._limits.record_bytes:
                raise too_long_flaw(len(body), self._limits)
            text = decoded(body, UTF8)
            return Record(position, body, parse_object(text), text)
        except Flaw as flaw:
            return refused(position, body, flaw)
        except (ValueError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            return refused(position, body, Flaw(Reason.BAD_JSON, why))

    def _is_empty(self) -> bool:
        """Nothing waits, and nothing that a dead consumer held is still to come again."""
        lag = self._queue.lag()
        return lag is None or lag <= len(self._handles())

    def check(self) -> None:
        """What is still open is claimed for longer, before somebody else gets it."""
        now_s = self._clock()
        if now_s - self._extended_s < self._queue.hold_s / 3:
            return
        self._extended_s = now_s
        self._queue.extend(self._handles())

    def done(self, positions: Sequence[Position]) -> None:
        handles = []
        with self._lock:
            for position in positions:
                mine = self._open[position.mark]
                handles.append(mine.pop(0))
                if not mine:
                    del self._open[position.mark]
        self._queue.ack(handles)

    def close(self) -> None:
        """What is open goes back, for whoever comes next."""
        self._closing = True
        try:
            if handles := self._handles():
                self._queue.nack(handles)
        finally:
            self._queue.close()

    def _handles(self) -> list[Any]:
        with self._lock:
            return [handle for mine in self._open.values() for handle in mine]
