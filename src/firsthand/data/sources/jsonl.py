"""JSON lines: one object per line.

Owns: which lines are records, and what of JSON is refused.
May not know: the contract; what a field means.
Read next: `../contract.py`.

Strict as `files.strict_json` is, with integers of at most 19 digits and without NUL. Only LF
and CRLF end a line. Blank lines are no records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from firsthand.data.encoding import Encoding
from firsthand.data.lines import read_lines, without_end
from firsthand.data.record import START, Position, Reason, Record, Rejected
from firsthand.data.source import (
    Flaw,
    Limits,
    decoded,
    position_of,
    refused,
    texts_in,
    too_long,
)
from firsthand.files import DoubledKey, strict_json

MAX_INTEGER_DIGITS = 19
NO_LIMITS = Limits()
BLANK = b" \t\r\n\0"  # NUL: half of a blank in UTF-16


def read_jsonl(
    stream: BinaryIO,
    encoding: Encoding,
    limits: Limits = NO_LIMITS,
    after: Position = START,
) -> Iterator[Record | Rejected]:
    """Every record behind `after`."""
    record, newline = after.record, encoding.newline
    start = after.end or encoding.mark_bytes
    stream.seek(start)
    for line in read_lines(stream, limits.record_bytes, start, after.last_line, newline):
        if not line.content.strip(BLANK):
            continue
        record += 1
        position = position_of(line, record)
        try:
            if line.sha256 is not None:
                raise too_long(line, limits)
            raw = without_end(line.content, newline)
            text = decoded(raw, encoding)
            yield Record(position, raw, parse_object(text), text)
        except Flaw as flaw:
            yield refused(position, line.content, flaw, line.sha256)


def parse_object(text: str) -> dict[str, Any]:
    """The fields of one JSON object. Raises Flaw."""
    try:
        value = strict_json(text, _integer)
    except DoubledKey as error:
        raise Flaw(Reason.DUPLICATE_KEY, str(error)) from error
    except UnicodeError as error:
        raise Flaw(Reason.BAD_JSON, "an escape writes half a character") from error
    except ValueError as error:
        raise Flaw(Reason.BAD_JSON, str(error)[:200]) from error
    if "\\u0000" in text and any("\0" in one for one in texts_in(value)):
        raise Flaw(Reason.NUL, "an escape writes a NUL")
    if not isinstance(value, dict):
        raise Flaw(Reason.NOT_AN_OBJECT, f"is {type(value).__name__}, not an object")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS + text.startswith("-"):
        limit = f"the limit is {MAX_INTEGER_DIGITS} digits"
        raise ValueError(f"an integer of {len(text)} digits; {limit}")
    return int(text)
