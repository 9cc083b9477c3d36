"""What every source is: records in their order, that can go on where an earlier run ended.

Owns: the protocol, what is said of a source, the limits of a record, and the making of a Rejected.
May not know: the syntax of any format.
Read next: `sources/files.py` (files), `sources/messages.py` (queues), `sources/tables.py` (SQL).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from firsthand.data.encoding import Encoding
from firsthand.data.lines import MAX_LINE_BYTES, Line
from firsthand.data.record import Position, Reason, Record, Rejected, rejected
from firsthand.values import dataclass

HALF = re.compile("[\ud800-\udfff]")
READ = "read"  # the stage of what a source itself refuses


@dataclass(frozen=True, slots=True)
class Limits:
    """What one record may cost."""

    record_bytes: int = MAX_LINE_BYTES


NO_LIMITS = Limits()  # but those that every record has


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """`name`: where records come from, as lineage calls it. `size`: in bytes, of a table in rows;
    None: nobody knows. `version`: what tells this content from another, for whoever comes back to
    it. `live`: messages come while it runs, and may come twice."""

    kind: str
    name: str
    encoding: Encoding | None = None
    delimiter: str | None = None
    columns: tuple[str, ...] = ()
    size: int | None = None
    version: str = ""
    live: bool = False

    def share(self, position: Position) -> float | None:
        """How much of it lies before the end of a record."""
        if not self.size:
            return None
        return min(1.0, (position.end or position.record) / self.size)


class Source(Protocol):
    """Made by an `open_…` function, which says behind which position to begin. One run reads it
    once; every method is called by one thread at a time."""

    @property
    def facts(self) -> SourceFacts: ...

    def __iter__(self) -> Iterator[Record | Rejected]: ...

    def check(self) -> None:
        """Before what was read becomes durable. Raises SourceRefused: it changed meanwhile."""

    def done(self, positions: Sequence[Position]) -> None:
        """What became of these is durable: a queue acknowledges them."""

    def close(self) -> None: ...


class Unmoved:
    """The answers of a source that keeps still: nothing to compare, nothing to acknowledge."""

    def check(self) -> None: ...

    def done(self, positions: Sequence[Position]) -> None: ...


@dataclass(frozen=True, slots=True)
class Flaw(Exception):
    """Why bytes are no record; a source makes a Rejected of it."""

    reason: Reason
    detail: str


def refused(position: Position, raw: bytes, flaw: Flaw, sha256: str | None = None) -> Rejected:
    """What a source says of a record that it cannot give."""
    return rejected(position, raw, READ, flaw.reason, flaw.detail, sha256=sha256)


def row_record(
    number: int, mark: Any, fields: dict[str, Any], limits: Limits = NO_LIMITS
) -> Record | Rejected:
    """A row of a table, under the rules that lines of a file have. Its bytes are the JSON of its
    fields, in their order."""
    position = Position(number, number, 0, 0, 1, mark)
    text = json.dumps(fields, ensure_ascii=False, default=str)
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > limits.record_bytes:
        return refused(position, raw, too_long_flaw(len(raw), limits))
    if HALF.search(text) is not None:
        return refused(position, raw, Flaw(Reason.BAD_ENCODING, "a text is not UTF-8"))
    if "\\u0000" in text and any("\0" in one for one in texts_in(fields)):
        return refused(position, raw, Flaw(Reason.NUL, "a text holds a NUL"))
    return Record(position, raw, fields)


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a value, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)
    elif isinstance(value, dict):
        yield from value
        for one in value.values():
            yield from texts_in(one)


def position_of(line: Line, record: int) -> Position:
    return Position(record, line.number, line.offset, line.num_bytes)


def too_long(line: Line, limits: Limits) -> Flaw:
    return too_long_flaw(line.num_bytes, limits)


def too_long_flaw(num_bytes: int, limits: Limits) -> Flaw:
    return Flaw(
        Reason.TOO_LONG, f"{num_bytes} bytes; the limit is {limits.record_bytes} per record"
    )


def decoded(content: bytes, encoding: Encoding) -> str:
    """The text of a record. Raises Flaw."""
    try:
        text = encoding.text(content)
    except UnicodeDecodeError as error:
        wrong = content[error.start : error.start + 4].hex(" ")
        name = encoding.name or "any encoding that can be told from its bytes"
        raise Flaw(
            Reason.BAD_ENCODING, f"byte {error.start + 1} ({wrong}) is not {name}"
        ) from error
    if "\0" in text:
        raise Flaw(Reason.NUL, f"a NUL stands at character {text.index(chr(0)) + 1}")
    return text
