"""Physical lines of a stream of bytes, each with its number and place, in bounded memory.

Owns: where a line ends: at LF or CRLF, nowhere else.
May not know: encodings, but the bytes of LF in one; what a line means.
Read next: `sources/jsonl.py`, `sources/csv_file.py`.

A line is cut from bytes, before anything is decoded: no character can lie across the edge of a
buffer, and U+2028 or U+0085 inside a text ends nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from firsthand.data.record import KEPT_RAW_BYTES

MAX_LINE_BYTES = 1024 * 1024
LF = b"\n"


class Line(NamedTuple):
    """`content` has its line end still; of one that is too long only the start is kept."""

    number: int
    offset: int
    content: bytes
    num_bytes: int
    sha256: str | None  # of all its bytes, where it was too long; else None


def read_lines(
    stream: BinaryIO,
    max_bytes: int = MAX_LINE_BYTES,
    start: int = 0,
    number: int = 0,
    newline: bytes = LF,
) -> Iterator[Line]:
    """Every line of a stream that stands at byte `start`, behind line `number`.

    `stream` must be buffered (`readline` gives less than asked for only at a line's end or the
    stream's). Memory is bounded by `max_bytes`, whatever the file holds.
    """
    offset = start
    max_bytes -= max_bytes % len(newline)
    readline = stream.readline if newline == LF else _Wide(stream, newline).readline
    while content := readline(max_bytes):
        number += 1
        if len(content) < max_bytes or content.endswith(newline):
            yield Line(number, offset, content, len(content), None)
            offset += len(content)
            continue
        digest, num_bytes = hashlib.sha256(content), len(content)
        kept, more = content[:KEPT_RAW_BYTES], content
        while not more.endswith(newline) and (more := readline(max_bytes)):
            digest.update(more)
            num_bytes += len(more)
        yield Line(number, offset, kept, num_bytes, digest.hexdigest())
        offset += num_bytes


class _Wide:
    """Lines whose characters have two or four bytes: the byte 0A is an LF only as part of one."""

    def __init__(self, stream: BinaryIO, newline: bytes) -> None:
        self._stream = stream
        self._newline = newline
        self._width = len(newline)

    def readline(self, limit: int) -> bytes:
        """As a stream's own; `limit` is a multiple of the width."""
        content = b""
        while len(content) < limit and (more := self._stream.readline(limit - len(content))):
            content += more
            if content.endswith(LF):
                content += self._stream.read(-len(content) % self._width)
                if content.endswith(self._newline):
                    break
        return content


def without_end(content: bytes, newline: bytes = LF) -> bytes:
    """A line without its LF or CRLF."""
    if content.endswith(newline):
        content = content[: -len(newline)]
        cr = newline.replace(LF, b"\r")
        if content.endswith(cr) and len(content) % len(newline) == 0:
            content = content[: -len(cr)]
    return content
