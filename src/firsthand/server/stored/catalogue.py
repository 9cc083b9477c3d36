"""What is kept for callers, in one SQLite file: a change is there whole, or not at all.

Owns: the file, its tables, transactions, what a disk that takes nothing means to a caller.
May not know: what a row means.
Read next: `files.py` and `batches.py`, each with its table.

Each use opens it anew: it is asked from several threads, and may be from several servers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from firsthand.errors import InvalidRequest
from firsthand.server.guard.refusal import Refused
from firsthand.values import dataclass

VERSION = 1
BUSY_S = 10.0
SCHEMA = """
CREATE TABLE files (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL,
  name TEXT NOT NULL, purpose TEXT NOT NULL, num_bytes INTEGER NOT NULL, sha256 TEXT NOT NULL,
  created_at INTEGER NOT NULL, expires_at INTEGER
);
CREATE INDEX files_by_owner ON files (owner, number);
CREATE TABLE batches (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL,
  open INTEGER NOT NULL, value TEXT NOT NULL
);
CREATE INDEX batches_by_owner ON batches (owner, number);
CREATE INDEX batches_open ON batches (open, number);
"""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Made by `open_catalogue`."""

    path: Path

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Raises Refused."""
        try:
            with closing(_connected(self.path)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise disk_refused(error) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, durable when the block has ended; undone where it raises."""
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def open_catalogue(path: Path) -> Catalogue:
    """Raises InvalidRequest: it cannot be used, or is of another version."""
    try:
        with closing(_connected(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                message = f"{path} is of version {version}, this server knows {VERSION}"
                raise InvalidRequest("files_folder", message)
            if version == 0:
                for statement in SCHEMA.split(";")[:-1]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise InvalidRequest("files_folder", f"{path}: {error}") from error
    return Catalogue(path)


def disk_refused(fault: Exception) -> Refused:
    """What the disk says stays in the log: it may name our folders."""
    message = "the server's disk takes nothing now; nothing was changed"
    refused = Refused(503, message, "storage_failed", retry_after_s=30.0)
    refused.__cause__ = fault
    return refused


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)
    connection.execute("PRAGMA synchronous = FULL")
    return connection
