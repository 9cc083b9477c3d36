"""A JSON array of objects, streamed: the file may be larger than memory.

Owns: where an element begins and ends.
May not know: the contract; what a field means.
Read next: `jsonl.py`, whose rules hold for each element.

Borders are found by brackets and quotes alone, so that an element with a fault inside costs itself
and no other. What breaks the array itself refuses the file at that byte; what stood before it was
read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import BinaryIO

from firsthand.data.encoding import Encoding
from firsthand.data.record import KEPT_RAW_BYTES, START, Position, Record, Rejected
from firsthand.data.source import Flaw, Limits, decoded, refused, too_long_flaw
from firsthand.data.sources.jsonl import parse_object
from firsthand.errors import SourceRefused
from firsthand.values import dataclass

CHUNK_BYTES = 64 * 1024
NO_LIMITS = Limits()
OUTSIDE = re.compile(rb'["\[\]{},]')
INSIDE = re.compile(rb'["\\]')
BLANKS = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class _Element:
    """Of one that is too long only the start is kept, and the hash is of all of it."""

    content: bytes
    offset: int
    num_bytes: int
    line: int
    num_lines: int
    sha256: str | None
    ends_array: bool


def read_json_array(
    stream: BinaryIO, encoding: Encoding, limits: Limits = NO_LIMITS, after: Position = START
) -> Iterator[Record | Rejected]:
    """Every element behind `after`. Raises SourceRefused: it is no array, or it breaks off."""
    record = after.record
    for element in _Elements(stream, limits.record_bytes).behind(encoding.mark_bytes, after):
        raw = element.content.strip(BLANKS)
        if not raw and element.sha256 is None:
            if element.ends_array and record == 0:
                continue  # an empty array
            raise SourceRefused(f"byte {element.offset}", "a comma has no element beside it")
        record += 1
        lead = len(element.content) - len(element.content.lstrip(BLANKS))
        lines = element.content[:lead].count(b"\n")
        position = Position(
            record,
            element.line + lines,
            element.offset + lead,
            element.num_bytes - lead,
            element.num_lines - lines,
        )
        try:
            if element.sha256 is not None:
                raise too_long_flaw(position.num_bytes, limits)
            text = decoded(raw, encoding)
            yield Record(position, raw, parse_object(text), text)
        except Flaw as flaw:
            yield refused(position, raw, flaw, element.sha256)


class _Elements:
    """Pieces between the commas of the outermost array."""

    def __init__(self, stream: BinaryIO, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    def behind(self, start: int, after: Position) -> Iterator[_Element]:
        """All elements, or those behind one that was read before."""
        offset, line = start, 1
        if after.record:
            offset, line = after.end, after.last_line
        self._stream.seek(offset)
        opening = b"," if after.record else b"["
        first, lead = self._first_byte()
        offset, line = offset + len(lead) + 1, line + lead.count(b"\n")
        if after.record and first == b"]":
            self._check_end(offset)
            return
        if first != opening:
            raise SourceRefused(f"byte {offset - 1}", f"is no {opening.decode()} of a JSON array")
        rest, ended = b"", False
        while not ended:
            element, rest = self._element(rest, offset, line)
            yield element
            offset += element.num_bytes + 1
            line += element.num_lines - 1
            ended = element.ends_array
        self._stream.seek(offset)
        self._check_end(offset)

    def _first_byte(self) -> tuple[bytes, bytes]:
        lead = b""
        while (byte := self._stream.read(1)) and byte in (b" ", b"\t", b"\r", b"\n"):
            lead += byte
        return byte, lead

    def _check_end(self, offset: int) -> None:
        if self._first_byte()[0]:
            raise SourceRefused(f"byte {offset}", "something stands behind the array")

    def _element(self, piece: bytes, offset: int, line: int) -> tuple[_Element, bytes]:
        """The next element, and what was read of the one behind it."""
        kept, digest, passed, lines = b"", None, 0, 0
        at, depth, in_string = 0, 0, False
        while True:
            end, at, depth, in_string = _scan(piece, at, depth, in_string)
            taken = piece if end is None else piece[:end]
            if end is None and passed + len(taken) <= self._max_bytes:
                more = self._stream.read(CHUNK_BYTES)
                if not more:
                    raise SourceRefused(
                        f"byte {offset + passed + len(piece)}", "the array breaks off"
                    )
                piece += more
                continue
            too_long = digest is not None or passed + len(taken) > self._max_bytes
            if too_long:
                digest = digest or hashlib.sha256()
                digest.update(taken)
                kept = (kept + taken)[:KEPT_RAW_BYTES]
            else:
                kept = taken
            lines += taken.count(b"\n")
            passed += len(taken)
            if end is not None:
                sha256 = digest.hexdigest() if digest is not None else None
                last = piece[end : end + 1] == b"]"
                found = _Element(kept, offset, passed, line, lines + 1, sha256, last)
                return found, piece[end + 1 :]
            piece, at = self._stream.read(CHUNK_BYTES), at - len(taken)
            if not piece:
                raise SourceRefused(f"byte {offset + passed}", "the array breaks off")


def _scan(piece: bytes, at: int, depth: int, in_string: bool) -> tuple[int | None, int, int, bool]:
    """Where the element's end stands, or None; and the state at the end of the piece."""
    while True:
        found = (INSIDE if in_string else OUTSIDE).search(piece, at)
        if found is None:
            return None, max(at, len(piece)), depth, in_string
        at, mark = found.end(), found.group()
        if mark == b"\\":
            at += 1  # what is escaped, also where it is not there yet
        elif mark == b'"':
            in_string = not in_string
        elif mark in b"[{":
            depth += 1
        elif depth == 0 and mark in b",]":
            return at - 1, at, depth, in_string
        elif mark in b"]}":
            depth -= 1
