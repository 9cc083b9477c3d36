"""JSON lines: one object per line.

Owns: which lines are records, and what of JSON is refused.
May not know: the contract; what a field means.
Read next: `contract.py`.

Strict: each key once, finite numbers, integers of at most 19 digits, no half characters. Only LF
and CRLF end a line. Blank lines are no records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from firsthand.data.encoding import Encoding
from firsthand.data.lines import read_lines, without_end
from firsthand.data.record import Reason, Record, Rejected
from firsthand.data.source import Flaw, Limits, decoded, position_of, refused, too_long

MAX_INTEGER_DIGITS = 19
NO_LIMITS = Limits()


def read_jsonl(
    stream: BinaryIO, encoding: Encoding, limits: Limits = NO_LIMITS
) -> Iterator[Record | Rejected]:
    """Every record of a stream that stands behind its byte order mark, if it has one."""
    record = 0
    for line in read_lines(stream, limits.record_bytes, encoding.mark_bytes):
        if not line.content.strip():
            continue
        record += 1
        position = position_of(line, record)
        try:
            if line.sha256 is not None:
                raise too_long(line, limits)
            raw = without_end(line.content)
            text = decoded(raw, encoding)
            yield Record(position, raw, parse_object(text), text)
        except Flaw as flaw:
            yield refused(position, line.content, flaw, line.sha256)


def parse_object(text: str) -> dict[str, Any]:
    """The fields of one JSON object. Raises Flaw."""
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object_of,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except RecursionError as error:
        raise Flaw(Reason.BAD_JSON, "is nested too deep") from error
    except ValueError as error:
        raise Flaw(Reason.BAD_JSON, str(error)[:200]) from error
    if "\\u" in text:
        _refuse_half_characters(value)
    if not isinstance(value, dict):
        raise Flaw(Reason.NOT_AN_OBJECT, f"is {type(value).__name__}, not an object")
    return value


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise Flaw(Reason.DUPLICATE_KEY, f"the key {doubled[:80]!r} stands there twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise Flaw(Reason.BAD_JSON, f"{word} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Flaw(Reason.BAD_JSON, f"the number {text[:40]} is out of range")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS + text.startswith("-"):
        limit = f"the limit is {MAX_INTEGER_DIGITS} digits"
        raise Flaw(Reason.BAD_JSON, f"an integer of {len(text)} digits; {limit}")
    return int(text)


def _refuse_half_characters(value: Any) -> None:
    """An escape can write a NUL, or half of a pair, which no text can hold."""
    for text in _texts(value):
        if "\0" in text:
            raise Flaw(Reason.NUL, "an escape writes a NUL")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Flaw(Reason.BAD_JSON, "an escape writes half a character") from error


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        yield from value
        for one in value.values():
            yield from _texts(one)
