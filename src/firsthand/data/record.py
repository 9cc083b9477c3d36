"""The nouns of the pipeline: a record, where it stood, and a record that is refused.

Owns: Position, Reason, Record and Rejected (what a source yields), Accepted and Duplicate (what
becomes of a Record).
May not know: any source, contract or sink.
Read next: `lines.py`, then the sources.

A source yields a Record or a Rejected for everything that stood in its place, so that the books
balance: what was read is what was accepted, refused, or there before.
"""

from __future__ import annotations

import hashlib
from dataclasses import field
from enum import StrEnum
from typing import Any, NamedTuple

from firsthand.values import dataclass

KEPT_RAW_BYTES = 64 * 1024  # of a refused record; longer ones keep their start, length and hash


class Reason(StrEnum):
    """Why a record is refused. The words are stable: metrics, quarantine and reports use them."""

    BAD_ENCODING = "bad_encoding"  # its bytes are none of the file's encoding
    TOO_LONG = "too_long"
    NUL = "nul"
    BAD_JSON = "bad_json"
    DUPLICATE_KEY = "duplicate_key"
    NOT_AN_OBJECT = "not_an_object"
    BAD_QUOTES = "bad_quotes"
    COLUMN_COUNT = "column_count"
    MISSING_FIELD = "missing_field"
    UNKNOWN_FIELD = "unknown_field"
    BLANK = "blank"
    OUT_OF_RANGE = "out_of_range"
    WRONG_TYPE = "wrong_type"
    INVALID = "invalid"  # refused by a rule of the contract's own
    FAILED = "failed"  # a transform raised
    REFUSED = "refused"  # by the engine, as the caller's fault
    POISON = "poison"  # each of three tries failed, or ended the process


class Position(NamedTuple):
    """Where a record stood: counted from 1; the offset in bytes from 0."""

    record: int
    line: int  # the physical line on which it begins
    offset: int
    num_bytes: int
    num_lines: int = 1
    mark: Any = None  # what a table or a queue calls it: a key, the id of a message

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes

    @property
    def last_line(self) -> int:
        return self.line + self.num_lines - 1


START = Position(0, 1, 0, 0, 0)  # before the first record of all


@dataclass(slots=True)
class Record:
    """Fields by name, as the source holds them, with the bytes that they were read from.

    Not frozen, for its cost: a frozen dataclass takes three times as long to make.
    """

    position: Position
    raw: bytes
    fields: dict[str, Any]
    json: str | None = None  # the text of the fields, where they were read from JSON
    from_texts: bool = False  # the fields are the cells of a table of texts


@dataclass(slots=True)
class Accepted:
    """A record that keeps its contract: `values` are the contract's, with its defaults."""

    record: Record
    key: str | None
    values: dict[str, Any]
    claims: list[tuple[str, str]] = field(default_factory=list)  # what no later one may be

    @property
    def position(self) -> Position:
        return self.record.position


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A record whose key an accepted one has had."""

    position: Position
    key: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that may not go on: what, why, and at which stage.

    `raw` holds its bytes up to KEPT_RAW_BYTES; `sha256` is that of all of them.
    """

    position: Position
    raw: bytes
    sha256: str
    stage: str  # "read", "contract", the name of a transform, "engine", or "run"
    reason: Reason
    detail: str
    field: str | None = None


def rejected(
    position: Position,
    raw: bytes,
    stage: str,
    reason: Reason,
    detail: str,
    *,
    field: str | None = None,
    sha256: str | None = None,
) -> Rejected:
    """`sha256`: that of all bytes, where `raw` is only their start; else it is taken of `raw`."""
    digest = sha256 or hashlib.sha256(raw).hexdigest()
    return Rejected(position, raw[:KEPT_RAW_BYTES], digest, stage, reason, detail, field)


def content_sha256(item: Record | Rejected) -> str:
    """Of all its bytes."""
    return item.sha256 if isinstance(item, Rejected) else hashlib.sha256(item.raw).hexdigest()
