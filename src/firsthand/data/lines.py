"""Physical lines of a stream of bytes, each with its number and place, in bounded memory.

Owns: where a line ends: at LF or CRLF, nowhere else.
May not know: encodings, but that LF is the byte 0A in all of them; what a line means.
Read next: `jsonl.py`, `csv_file.py`.

A line is cut from bytes, before anything is decoded: no character can lie across the edge of a
buffer, and U+2028 or U+0085 inside a text ends nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from firsthand.data.record import KEPT_RAW_BYTES

MAX_LINE_BYTES = 1024 * 1024


class Line(NamedTuple):
    """`content` has its line end still; of one that is too long only the start is kept."""

    number: int
    offset: int
    content: bytes
    num_bytes: int
    sha256: str | None  # of all its bytes, where it was too long; else None


def read_lines(
    stream: BinaryIO, max_bytes: int = MAX_LINE_BYTES, start: int = 0, number: int = 0
) -> Iterator[Line]:
    """Every line of a stream that stands at byte `start`, behind line `number`.

    `stream` must be buffered (`readline` gives less than asked for only at a line's end or the
    stream's). Memory is bounded by `max_bytes`, whatever the file holds.
    """
    offset = start
    while content := stream.readline(max_bytes):
        number += 1
        if len(content) < max_bytes or content.endswith(b"\n"):
            yield Line(number, offset, content, len(content), None)
            offset += len(content)
            continue
        digest, num_bytes = hashlib.sha256(content), len(content)
        kept, more = content[:KEPT_RAW_BYTES], content
        while not more.endswith(b"\n") and (more := stream.readline(max_bytes)):
            digest.update(more)
            num_bytes += len(more)
        yield Line(number, offset, kept, num_bytes, digest.hexdigest())
        offset += num_bytes


def without_end(content: bytes) -> bytes:
    """A line without its LF or CRLF."""
    if content.endswith(b"\n"):
        return content[: -2 if content.endswith(b"\r\n") else -1]
    return content
