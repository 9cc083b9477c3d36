"""Which keys have been there: exact, in memory that stays small.

Owns: the set of keys of one run.
May not know: records; what a key means.
Read next: `check.py`.

Keys are kept as digests of 16 bytes: the first half million in memory, and once there are more, all
of them in a table on disk that is gone with the run.
"""

from __future__ import annotations

import hashlib
import sqlite3

MAX_IN_MEMORY = 500_000
CACHE_KIB = 32 * 1024


class Seen:
    """Not safe for threads."""

    def __init__(self, max_in_memory: int = MAX_IN_MEMORY) -> None:
        self._max_in_memory = max_in_memory
        self._recent: set[bytes] = set()
        self._table: sqlite3.Connection | None = None

    def add(self, key: str) -> bool:
        """Whether the key is new."""
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        if self._table is not None:
            cursor = self._table.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,))
            return cursor.rowcount == 1
        if digest in self._recent:
            return False
        self._recent.add(digest)
        if len(self._recent) >= self._max_in_memory:
            self._spill()
        return True

    def _spill(self) -> None:
        # An empty name: a file that the system removes with the connection.
        self._table = sqlite3.connect("", isolation_level=None)
        self._table.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("PRAGMA synchronous = OFF")
        self._table.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        self._table.execute("BEGIN")
        self._table.executemany(
            "INSERT INTO seen VALUES (?)", ((one,) for one in sorted(self._recent))
        )
        self._recent = set()

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
