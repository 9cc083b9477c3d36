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
from collections.abc import Sequence

MAX_IN_MEMORY = 500_000
CACHE_KIB = 32 * 1024


class Seen:
    """Not safe for threads."""

    def __init__(self, max_in_memory: int = MAX_IN_MEMORY) -> None:
        self._max_in_memory = max_in_memory
        self._recent: set[bytes] = set()
        self._table: sqlite3.Connection | None = None

    def take(self, claims: Sequence[tuple[str, str]]) -> bool:
        """Take all of these (kind of key, key), if each is new."""
        digests = [digest_of(space, key) for space, key in claims]
        for digest in digests:
            if self._has(digest):
                return False
        for digest in digests:
            self._add(digest)
        return True

    def _has(self, digest: bytes) -> bool:
        if self._table is None:
            return digest in self._recent
        found = self._table.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,))
        return found.fetchone() is not None

    def _add(self, digest: bytes) -> None:
        if self._table is not None:
            self._table.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,))
            return
        self._recent.add(digest)
        if len(self._recent) >= self._max_in_memory:
            self._spill()

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


def digest_of(space: str, key: str) -> bytes:
    """What stands for a key of one kind."""
    return hashlib.blake2b(f"{space}\0{key}".encode(), digest_size=16).digest()
