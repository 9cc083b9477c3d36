"""The queue that needs no server: a table in a SQLite file.

Owns: the table, and who holds which message until when.
May not know: what a message means.
Read next: `protocol.py`.

A consumer has a name that outlives its process, so that the next one of this name gets what it
held at once and in order. The clock is the wall's: consumers are different processes.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from firsthand.data.queues.protocol import Message
from firsthand.errors import SourceRefused

HOLD_S = 60.0
BATCH = 64
LOOK_S = 0.05
SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, name TEXT, body BLOB NOT NULL,
  holder TEXT, held_until REAL NOT NULL DEFAULT 0, UNIQUE (queue, name)
)
"""


class SqliteQueue:
    """`holder`: the consumer's name."""

    def __init__(
        self, path: Path, queue: str, holder: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.hold_s = HOLD_S
        self._queue, self._holder, self._clock = queue, holder, clock
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                path, isolation_level=None, timeout=10.0, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(SCHEMA)
            self._connection.execute(
                "UPDATE messages SET held_until = 0 WHERE queue = ? AND holder = ?", (queue, holder)
            )
        except sqlite3.Error as error:
            raise SourceRefused(str(path), str(error)) from error

    def receive(self, timeout_s: float) -> list[Message]:
        until_s = time.monotonic() + timeout_s
        while True:
            if found := self._receive():
                return found
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return []
            time.sleep(min(LOOK_S, left_s))

    def _receive(self) -> list[Message]:
        now_s = self._clock()
        with self._lock:
            rows = self._connection.execute(
                "UPDATE messages SET holder = ?, held_until = ? WHERE id IN ("
                "SELECT id FROM messages WHERE queue = ? AND held_until <= ? ORDER BY id LIMIT ?"
                ") RETURNING id, CAST(body AS BLOB)",  # who wrote it may have written a text
                (self._holder, now_s + self.hold_s, self._queue, now_s, BATCH),
            ).fetchall()
        return [Message(str(number), body or b"", number) for number, body in sorted(rows)]

    def ack(self, handles: Sequence[Any]) -> None:
        self._all("DELETE FROM messages WHERE id = ?", [(one,) for one in handles])

    def nack(self, handles: Sequence[Any]) -> None:
        self._all("UPDATE messages SET held_until = 0 WHERE id = ?", [(one,) for one in handles])

    def extend(self, handles: Sequence[Any]) -> None:
        until_s = self._clock() + self.hold_s
        self._all(
            "UPDATE messages SET held_until = ? WHERE id = ?", [(until_s, one) for one in handles]
        )

    def lag(self) -> int | None:
        with self._lock:
            found = self._connection.execute(
                "SELECT count(*) FROM messages WHERE queue = ?", (self._queue,)
            )
            return int(found.fetchone()[0])

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        self._all(
            "INSERT OR IGNORE INTO messages (queue, name, body) VALUES (?, ?, ?)",
            [(self._queue, name, body) for name, body in messages],
        )

    def _all(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        with self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(statement, values)

    def close(self) -> None:
        """Not while another thread has a statement under way: SQLite would be pulled from under it,
        and the process end."""
        with self._lock:
            self._connection.close()
