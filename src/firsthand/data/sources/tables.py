"""Rows of a query, in the order of a key, as one view: SQLite, or PostgreSQL by the extra `data`.

Owns: the query around the user's, the transaction, and that memory holds a few rows of many.
May not know: the contract; what a column means.
Read next: `../source.py`.

A key that comes twice would be lost or doubled when a run goes on, so it ends the run.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from firsthand.data.contract import Contract
from firsthand.data.job import SourcePart, place_name
from firsthand.data.record import Position, Record, Rejected
from firsthand.data.source import SourceFacts, Unmoved, row_record
from firsthand.data.sources.files import check_columns
from firsthand.errors import InvalidRequest, SourceRefused
from firsthand.values import dataclass

BATCH_ROWS = 256
INTEGER_OIDS = (20, 21, 23)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as they come, and what ends the transaction."""

    columns: tuple[str, ...]
    rows: Iterator[Sequence[Any]]
    close: Callable[[], None]
    faults: tuple[type[Exception], ...]


class TableSource(Unmoved):
    """Made by `open_table`."""

    def __init__(self, facts: SourceFacts, rows: Rows, key: str, after: Position) -> None:
        self.facts = facts
        self._rows = rows
        self._at = rows.columns.index(key)
        self._after = after

    def __iter__(self) -> Iterator[Record | Rejected]:
        columns, record, before = self._rows.columns, self._after.record, self._after.mark
        try:
            for row in self._rows.rows:
                record, key = record + 1, row[self._at]
                if not isinstance(key, int | str) or isinstance(key, bool):
                    raise SourceRefused("key", f"row {record}: is no integer and no text")
                if key == before:
                    raise SourceRefused("key", f"row {record}: {key!r} stands there twice")
                before = key
                yield row_record(record, key, dict(zip(columns, row, strict=True)))
        except self._rows.faults as error:
            raise SourceRefused(self.facts.name, f"row {record + 1}: {error}") from error

    def close(self) -> None:
        self._rows.close()


def open_table(
    part: SourcePart, folder: Path, contract: type[Contract], after: Position
) -> TableSource:
    """The rows whose key is beyond that of `after`. Raises SourceRefused."""
    url, key = str(part.url), str(part.key)
    if not NAME.fullmatch(key):
        raise InvalidRequest("source.key", f"{key[:80]!r} is no name of a column")
    query = str(part.query).strip().rstrip(";")
    given = () if after.mark is None else (after.mark,)
    if url.startswith("sqlite:"):
        rows = _sqlite(folder / url.removeprefix("sqlite:"), query, key, given)
    elif url.startswith(("postgresql://", "postgres://")):
        rows = _postgres(url, query, key, given)
    else:
        raise InvalidRequest("source.url", "begins with sqlite: or postgresql://")
    try:
        if key not in rows.columns:
            raise SourceRefused("query", f"gives no column {key!r}, the key")
        check_columns(rows.columns, contract)
    except BaseException:
        rows.close()
        raise
    facts = SourceFacts("sql", place_name(part), columns=rows.columns)
    return TableSource(facts, rows, key, after)


def ordered(query: str, by: str, place: str, behind: bool) -> str:
    """The user's query, in order and from where it was read to. `by` is the key as it is compared:
    by its bytes, for a database may hold two for equal that we do not."""
    where = f" WHERE {by} > {place}" if behind else ""
    return f"SELECT * FROM ({query}) AS given{where} ORDER BY {by}"


def _sqlite(path: Path, query: str, key: str, given: tuple[Any, ...]) -> Rows:
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise SourceRefused(str(path), str(error)) from error
    try:
        # A text that is not UTF-8 is refused by itself, and ends no run.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        connection.execute("BEGIN")
        by = f'"{key}" COLLATE BINARY'
        cursor = connection.execute(ordered(query, by, "?", bool(given)), given)
    except sqlite3.Error as error:
        connection.close()
        raise SourceRefused("query", str(error)) from error
    columns = tuple(one[0] for one in cursor.description)
    lock = threading.Lock()

    def rows() -> Iterator[Sequence[Any]]:
        while True:
            with lock:
                row = cursor.fetchone()
            if row is None:
                return
            yield row

    def close() -> None:
        """A row that another thread is looking for is given up first; closed under it, the process
        would end."""
        connection.interrupt()
        with lock:
            connection.close()

    return Rows(columns, rows(), close, (sqlite3.Error,))


def _compared(connection: Any, query: str, key: str) -> str:
    """Raises psycopg.Error."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM ({query}) AS given LIMIT 0".encode())
        kinds = {one.name: one.type_code for one in cursor.description or ()}
    return f'"{key}"' if kinds.get(key) in INTEGER_OIDS else f'"{key}"::text COLLATE "C"'


def _postgres(url: str, query: str, key: str, given: tuple[Any, ...]) -> Rows:
    """By a cursor that stays on the server: a client's own would hold the whole result."""
    import psycopg

    try:
        connection = psycopg.connect(url)
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    except psycopg.Error as error:
        raise SourceRefused("source.url", str(error).strip()) from error
    cursor = connection.cursor("firsthand")
    try:
        cursor.itersize = BATCH_ROWS
        by = _compared(connection, query, key)
        text = ordered(query.replace("%", "%%") if given else query, by, "%s", bool(given))
        cursor.execute(text.encode(), given or None)
    except psycopg.Error as error:
        cursor.close()
        connection.close()
        raise SourceRefused("query", str(error).strip()) from error

    def close() -> None:
        cursor.close()
        connection.close()

    columns = tuple(one.name for one in cursor.description or ())
    return Rows(columns, iter(cursor), close, (psycopg.Error,))
