"""Outputs as rows of a table: SQLite, or PostgreSQL by the extra `data`.

Owns: the table, and that a row which is there already stays as it is.
May not know: the form of an output; engines.
Read next: `../pipeline.py`.

A row is the output's id and its JSON. The rows of a step are committed before the ledger says so: a
crash between the two writes them again, onto themselves.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firsthand.data.job import SinkPart, place_name
from firsthand.errors import CapacityExceeded, InvalidRequest, SourceRefused

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class TableSink:
    """Made by `open_table_sink`."""

    def __init__(
        self,
        name: str,
        connection: Any,
        statement: str,
        count: int,
        faults: type[Exception],
    ) -> None:
        self.name = name
        self._connection = connection
        self._statement = statement
        self._count = count
        self._faults = faults
        self._waiting: list[tuple[str, str]] = []

    def add(self, identity: bytes, line: bytes) -> tuple[int, int]:
        self._waiting.append((identity.hex(), line.decode()))
        return self._count + len(self._waiting) - 1, len(line)

    def flush(self) -> Any:
        try:
            if self._waiting:
                self._connection.cursor().executemany(self._statement, self._waiting)
            self._connection.commit()
        except self._faults as error:
            raise CapacityExceeded(f"{self.name}: {error}") from error
        self._count += len(self._waiting)
        self._waiting = []
        return self._count

    def close(self) -> None:
        self._connection.close()


def open_table_sink(part: SinkPart, folder: Path, state: Any) -> TableSink:
    """The table is made if it is not there. Raises SourceRefused, InvalidRequest."""
    url, table = str(part.url), part.name or "outputs"
    if not NAME.fullmatch(table):
        raise InvalidRequest("sink.name", f"{table[:80]!r} is no name of a table")
    connect: Callable[[], Any]
    faults: type[Exception]
    if url.startswith("sqlite:"):
        faults, mark = sqlite3.Error, "?"
        path = folder / url.removeprefix("sqlite:")
        connect = lambda: sqlite3.connect(path)  # noqa: E731
    elif url.startswith(("postgresql://", "postgres://")):
        import psycopg

        faults, mark = psycopg.Error, "%s"
        connect = lambda: psycopg.connect(url)  # noqa: E731
    else:
        raise InvalidRequest("sink.url", "begins with sqlite: or postgresql://")
    name = place_name(part)
    try:
        connection = connect()
        connection.cursor().execute(
            f'CREATE TABLE IF NOT EXISTS "{table}" (id TEXT PRIMARY KEY, output TEXT NOT NULL)'
        )
        connection.commit()
    except faults as error:
        raise SourceRefused(name, str(error).strip()) from error
    statement = f'INSERT INTO "{table}" VALUES ({mark}, {mark}) ON CONFLICT (id) DO NOTHING'
    return TableSink(name, connection, statement, state or 0, faults)
