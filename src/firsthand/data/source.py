"""What all sources of files share: how a record is numbered, refused and opened.

Owns: the limits of a record, and the making of a Rejected.
May not know: the syntax of any format.
Read next: `jsonl.py`, `csv_file.py`.
"""

from __future__ import annotations

from firsthand.data.encoding import Encoding
from firsthand.data.lines import MAX_LINE_BYTES, Line
from firsthand.data.record import Position, Reason, Rejected, rejected
from firsthand.values import dataclass

READ = "read"  # the stage of what a source itself refuses


@dataclass(frozen=True, slots=True)
class Limits:
    """What one record may cost."""

    record_bytes: int = MAX_LINE_BYTES


@dataclass(frozen=True, slots=True)
class Flaw(Exception):
    """Why bytes are no record; a source makes a Rejected of it."""

    reason: Reason
    detail: str


def refused(position: Position, raw: bytes, flaw: Flaw, sha256: str | None = None) -> Rejected:
    """What a source says of a record that it cannot give."""
    return rejected(position, raw, READ, flaw.reason, flaw.detail, sha256=sha256)


def position_of(line: Line, record: int) -> Position:
    return Position(record, line.number, line.offset, line.num_bytes)


def too_long(line: Line, limits: Limits) -> Flaw:
    return Flaw(
        Reason.TOO_LONG, f"{line.num_bytes} bytes; the limit is {limits.record_bytes} per record"
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
