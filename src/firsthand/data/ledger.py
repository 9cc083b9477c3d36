"""What a run has done, beside its output, in one SQLite file: all of a step, or nothing of it.

Owns: the checkpoint, the books, the keys that were there, what is in quarantine, and which output
came from which input.
May not know: sources, engines, the form of an output.
Read next: `pipeline.py`, which commits; `quarantine.py` and `trace.py`, which look into it.

A commit comes after the output was synced, and holds: up to where the source was read, how much of
the output counts, and everything that was said of the records between. After a crash the output is
cut to what counts and the source read from there. Reading is at least once, output effectively
once.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from firsthand.data.books import Books
from firsthand.data.record import START, Duplicate, Position, Rejected
from firsthand.errors import BooksUnbalanced, CapacityExceeded, SourceRefused
from firsthand.values import dataclass

SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE outputs (
  id BLOB PRIMARY KEY, key TEXT, record INTEGER, line INTEGER, start INTEGER, num_bytes INTEGER,
  mark TEXT, input_sha256 BLOB, place INTEGER, place_bytes INTEGER, output_sha256 BLOB, sample TEXT
) WITHOUT ROWID;
CREATE INDEX outputs_by_key ON outputs (key);
CREATE TABLE quarantine (
  number INTEGER PRIMARY KEY, id BLOB, record INTEGER, line INTEGER, start INTEGER,
  num_bytes INTEGER, mark TEXT, stage TEXT, reason TEXT, field TEXT, detail TEXT, raw BLOB,
  sha256 TEXT, state TEXT NOT NULL, fixed BLOB
);
CREATE INDEX quarantine_by_id ON quarantine (id);
"""
VERSION = 1
BUSY_S = 2.0
MAX_DOUBLES = 20
HELD, REPLAYED, DOUBLE = "held", "replayed", "duplicate"  # the states in quarantine


@dataclass(frozen=True, slots=True)
class Output:
    """One output, and where it came from. `place` is where its bytes begin in the sink."""

    id: bytes
    key: str | None
    position: Position
    input_sha256: bytes
    place: int
    place_bytes: int
    output_sha256: bytes
    sample: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A record in quarantine."""

    number: int
    id: bytes
    position: Position
    stage: str
    reason: str
    field: str | None
    detail: str
    raw: bytes
    sha256: str
    state: str
    fixed: bytes | None

    @property
    def is_whole(self) -> bool:
        """Whether all its bytes were kept."""
        return len(self.raw) >= self.position.num_bytes or _sha256(self.raw) == self.sha256


class Ledger:
    """For one thread. Between two commits everything is one transaction, which holds off a second
    run. Made by `open_ledger`, or `read_ledger` for who only looks."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.books = self._read_books()

    @property
    def connection(self) -> sqlite3.Connection:
        """For who keeps tables of its own beside ours, in the same transactions."""
        return self._connection

    def close(self) -> None:
        """What was not committed is gone."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.close()

    def fact(self, name: str) -> Any:
        row = self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set_fact(self, name: str, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True)
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, text))

    @property
    def position(self) -> Position:
        """Behind which the source is to be read."""
        found = self.fact("position")
        return START if found is None else Position(*found)

    def has_seen(self, digest: bytes) -> bool:
        row = self._connection.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,)).fetchone()
        return row is not None

    def add_seen(self, digest: bytes) -> None:
        self._connection.execute("INSERT INTO seen VALUES (?)", (digest,))

    def add_all_seen(self, digests: Iterable[tuple[bytes]]) -> None:
        """Some of which may have been there."""
        self._connection.executemany("INSERT OR IGNORE INTO seen VALUES (?)", digests)

    def put(self, output: Output) -> None:
        """An output, and where it came from."""
        self.books.accepted += 1
        position = output.position
        self._connection.execute(
            "INSERT INTO outputs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(output.id, output.key, position.record, position.line, position.offset),
                *(position.num_bytes, _mark(position), output.input_sha256, output.place),
                *(output.place_bytes, output.output_sha256, output.sample),
            ),
        )

    def hold(self, rejected: Rejected, identity: bytes) -> None:
        """Into quarantine."""
        self.books.quarantined += 1
        self.books.reasons[rejected.reason] += 1
        position = rejected.position
        self._connection.execute(
            "INSERT INTO quarantine VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            (
                *(identity, position.record, position.line, position.offset, position.num_bytes),
                *(_mark(position), rejected.stage, rejected.reason, rejected.field),
                *(rejected.detail, rejected.raw, rejected.sha256, HELD),
            ),
        )

    def pass_over(self, duplicate: Duplicate) -> None:
        """The first ones are kept by name."""
        self.pass_over_all(1, [[duplicate.position.line, duplicate.key]])

    def pass_over_all(self, num: int, told: list[list[Any]]) -> None:
        """So many duplicates, of which the first are told by line and key."""
        self.books.duplicates += num
        known = self.fact("doubles") or []
        if told and len(known) < MAX_DOUBLES:
            self.set_fact("doubles", [*known, *told][:MAX_DOUBLES])

    def commit(self, position: Position, sink: Any) -> None:
        """A step of a run. `sink`: the state of what was flushed."""
        self.set_fact("position", [*position])
        self.set_fact("sink", sink)
        self.set_fact("starts", 1)  # from here on this one alone has begun
        self.set_fact("alone", None)
        self.commit_facts()

    def commit_facts(self) -> None:
        """Durable when it returns."""
        books = self.books
        numbers = [books.accepted, books.quarantined, books.duplicates]
        self.set_fact("books", [*numbers, dict(books.reasons)])
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")

    def give_up(self) -> None:
        """What was not committed never was."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        self.books = self._read_books()

    def check_books(self, num_read: int) -> None:
        """Raises BooksUnbalanced: what was read is not what came of it, as the tables count it."""
        count = self._connection.execute
        outputs = count("SELECT count(*) FROM outputs").fetchone()[0]
        held = count("SELECT count(*) FROM quarantine WHERE state = ?", (HELD,)).fetchone()[0]
        books = self.books
        if (num_read, outputs, held) != (books.read, books.accepted, books.quarantined):
            raise BooksUnbalanced(
                f"read {num_read}, but {outputs} outputs + {held} in quarantine + "
                f"{books.duplicates} duplicates; counted were {books.accepted} + "
                f"{books.quarantined} + {books.duplicates}"
            )

    def held(self, number: int) -> Held:
        """Raises SourceRefused."""
        found = self._held("WHERE number = ?", (number,)) if abs(number) < 1 << 63 else ()
        for one in found:
            return one
        raise SourceRefused(f"quarantine {number}", "there is no such record")

    def held_as(self, identity: bytes) -> Held | None:
        """A record by its name, if it is in quarantine."""
        return next(self._held("WHERE id = ? AND state = ?", (identity, HELD)), None)

    def all_held(self, *, state: str | None = HELD) -> Iterator[Held]:
        """In their order."""
        if state is None:
            return self._held("ORDER BY number", ())
        return self._held("WHERE state = ? ORDER BY number", (state,))

    def mend(self, number: int, fixed: bytes) -> None:
        """What is to be read in place of a held record."""
        self._connection.execute(
            "UPDATE quarantine SET fixed = ? WHERE number = ?", (fixed, number)
        )

    def release(self, number: int, state: str) -> None:
        """Out of quarantine: its outcome is in the books by another name now."""
        found = self.held(number)
        self._connection.execute(
            "UPDATE quarantine SET state = ? WHERE number = ?", (state, number)
        )
        self.books.quarantined -= 1
        self.books.reasons -= Counter([found.reason])

    def say_again(self, number: int, rejected: Rejected) -> None:
        """A held record was refused again, perhaps for another reason."""
        self.books.reasons -= Counter([self.held(number).reason])
        self.books.reasons[rejected.reason] += 1
        self._connection.execute(
            "UPDATE quarantine SET stage = ?, reason = ?, field = ?, detail = ? WHERE number = ?",
            (rejected.stage, rejected.reason, rejected.field, rejected.detail, number),
        )

    def output(self, identity: bytes) -> Output | None:
        return next(self._outputs("WHERE id = ?", (identity,)), None)

    def outputs_of(self, text: str) -> list[Output]:
        """Those whose key, input hash or id begins so; the id in hexadecimal."""
        found = {one.id: one for one in self._outputs("WHERE key = ? LIMIT 100", (text,))}
        if digits := _hex_range(text):
            where, halves = "WHERE id >= ? AND id < ? LIMIT 100", [one[:16] for one in digits]
            found |= {one.id: one for one in self._outputs(where, halves)}
            if not found:
                where = "WHERE input_sha256 >= ? AND input_sha256 < ? LIMIT 100"
                found |= {one.id: one for one in self._outputs(where, digits)}
        return list(found.values())

    def outputs(self) -> Iterator[Output]:
        """In the order of their records."""
        return self._outputs("ORDER BY record", ())

    def samples(self) -> Iterator[Output]:
        return self._outputs("WHERE sample IS NOT NULL ORDER BY record", ())

    def _outputs(self, where: str, values: Sequence[Any]) -> Iterator[Output]:
        for row in self._connection.execute(f"SELECT * FROM outputs {where}", values):
            yield Output(row[0], row[1], _position(row[2:7]), *row[7:])

    def _held(self, where: str, values: Sequence[Any]) -> Iterator[Held]:
        for row in self._connection.execute(f"SELECT * FROM quarantine {where}", values):
            yield Held(row[0], row[1], _position(row[2:7]), *row[7:])

    def _read_books(self) -> Books:
        found = self.fact("books") or [0, 0, 0, {}]
        accepted, quarantined, duplicates, reasons = found
        return Books(accepted, quarantined, duplicates, Counter(reasons))


def open_ledger(path: Path, facts: Mapping[str, Any]) -> Ledger:
    """Of a new run, or of one that is to go on.

    `facts` are those that may not change between runs. Raises SourceRefused naming the first that
    did; CapacityExceeded: another run has it.
    """
    connection = _connected(path, "rwc")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        if not path.is_file():
            raise CapacityExceeded(f"{path}: another run had it, and has not begun")
        _make_tables(path, connection)
        ledger = Ledger(path, connection)
        for name, value in facts.items():
            known = ledger.fact(name)
            if known is None:
                ledger.set_fact(name, value)
            elif known != json.loads(json.dumps(value)):
                raise SourceRefused(name, f"is not what this run began with; {path} holds that")
        return ledger
    except sqlite3.OperationalError as error:
        connection.close()
        if "locked" in str(error):
            raise CapacityExceeded(f"{path}: another run has it") from error
        raise SourceRefused(str(path), str(error)) from error
    except BaseException:
        connection.close()
        raise


def _make_tables(path: Path, connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise SourceRefused(str(path), f"is a ledger of version {version}, not {VERSION}")
    if version == 0:
        for statement in SCHEMA.split(";")[:-1]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def has_begun(path: Path) -> bool:
    """Whether a run has written it: one that was killed at once leaves a file without tables."""
    if not path.is_file():
        return False
    with closing(_connected(path, "rw")) as connection:
        return bool(connection.execute("PRAGMA user_version").fetchone()[0])


def read_ledger(path: Path, *, writes: bool = False) -> Ledger:
    """To look into it; with `writes` also to change what is in quarantine. Raises SourceRefused."""
    try:
        begun = has_begun(path)
    except sqlite3.Error as error:
        raise SourceRefused(str(path), f"is no ledger: {error}") from error
    if not begun:
        raise SourceRefused(str(path), "no run has begun that writes it")
    connection = _connected(path, "rw")
    try:
        if writes:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
        return Ledger(path, connection)
    except sqlite3.Error as error:
        connection.close()
        if "locked" in str(error):
            raise CapacityExceeded(f"{path}: a run has it") from error
        raise SourceRefused(str(path), f"is no ledger: {error}") from error


def _connected(path: Path, mode: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=BUSY_S,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise SourceRefused(str(path), str(error)) from error


def _mark(position: Position) -> str | None:
    return None if position.mark is None else json.dumps(position.mark)


def _position(row: Iterable[Any]) -> Position:
    record, line, start, num_bytes, mark = row
    return Position(record, line, start, num_bytes, 1, None if mark is None else json.loads(mark))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hex_range(text: str) -> tuple[bytes, bytes] | None:
    """The binary values whose hexadecimal form begins with a text of at least 6 digits."""
    try:
        number = int(text, 16)
    except ValueError:
        return None
    if not 6 <= len(text) <= 64 or not text.isalnum():
        return None
    shift = 4 * (64 - len(text))
    low, high = number << shift, (number + 1) << shift
    top = (1 << 256) - 1
    return low.to_bytes(32, "big"), min(high, top).to_bytes(32, "big")
