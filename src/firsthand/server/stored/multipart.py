"""A form with a file in it (`multipart/form-data`), read piece by piece in bounded memory.

Owns: the grammar of such a body, its limits, the pace at which it has to come.
May not know: which fields a form has, where a file goes.
Read next: `../routes/files.py`.

What is taken is what clients send: no preamble, a name for each part, no part inside a part.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from firsthand.server.guard.incoming import Receive
from firsthand.server.guard.refusal import Refused, client_gone

MAX_PARTS = 16
MAX_HEAD_BYTES = 4096  # of one part
MIN_BYTES_PER_S = 32 << 10  # slower than this a form has not arrived in time
_TYPE = re.compile(
    r"multipart/form-data\s*;(?:.*;)?\s*boundary=(?:\"([^\"]{1,70})\"|([^\s\";,]{1,70}))\s*(?:;.*)?",
    re.IGNORECASE | re.DOTALL,
)
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]*[0-9A-Za-z'()+_,./:=?-]")
_DISPOSITION = re.compile(rb"form-data(?=\s*;)", re.IGNORECASE)
_PARAMETER = re.compile(
    rb";\s*([a-z]+\*?)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\";]+))\s*", re.IGNORECASE
)


class Head(NamedTuple):
    """A part begins. `filename` None: it is a field."""

    name: str
    filename: str | None


class Piece(NamedTuple):
    """Bytes of the part that began last."""

    content: bytes


class Form:
    """Bytes in, heads and pieces out. Raises Refused, 400, on what is no form."""

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._rest = b"\r\n"  # before the first mark, as before every other
        self._inside = False
        self._num_parts = 0
        self.ended = False

    def feed(self, content: bytes) -> Iterator[Head | Piece]:
        self._rest += content
        while not self.ended:
            at = self._rest.find(self._mark)
            if at < 0:
                yield from self._part_so_far()
                return
            if at:
                yield self._piece(self._rest[:at])
                self._rest = self._rest[at:]
            if (head := self._next()) is None:
                return
            yield from head
        if self._rest.strip():
            raise broken("something stands behind its end")

    def _part_so_far(self) -> Iterator[Piece]:
        """All but what may be the beginning of a mark."""
        sure = len(self._rest) - len(self._mark) + 1
        if sure > 0:
            yield self._piece(self._rest[:sure])
            self._rest = self._rest[sure:]

    def _piece(self, content: bytes) -> Piece:
        if not self._inside:
            raise broken("something stands before its first part")
        return Piece(content)

    def _next(self) -> list[Head] | None:
        """The head behind a mark, or none behind the last; None: it is not all there yet."""
        start = len(self._mark)
        follows = self._rest[start : start + 2]
        if len(follows) < 2:
            return None
        if follows == b"--":
            self.ended, self._rest = True, self._rest[start + 2 :]
            return []
        if follows != b"\r\n":
            raise broken("its boundary stands inside a part")
        end = self._rest.find(b"\r\n\r\n", start)
        if end < 0:
            if len(self._rest) > start + MAX_HEAD_BYTES:
                raise broken(f"the head of a part has over {MAX_HEAD_BYTES} bytes")
            return None
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise broken(f"it has over {MAX_PARTS} parts")
        head = head_of(self._rest[start + 2 : end])
        self._rest, self._inside = self._rest[end + 4 :], True
        return [head]


def broken(why: str) -> Refused:
    return Refused(400, f"the body is no form: {why}", "invalid_value")


def boundary_of(content_type: str) -> bytes:
    """Raises Refused: 415 for another type, 400 for one without a boundary."""
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        raise Refused(415, "the body must be multipart/form-data", "unsupported_media_type")
    match = _TYPE.fullmatch(content_type.strip())
    found = (match[1] or match[2]) if match is not None else ""
    if not _BOUNDARY.fullmatch(found):
        raise broken("its type names no boundary")
    return found.encode("ascii")


def head_of(raw: bytes) -> Head:
    """Of the lines before a part. Raises Refused."""
    found: Head | None = None
    for line in raw.split(b"\r\n"):
        name, _, value = line.partition(b":")
        match name.strip().lower():
            case b"content-disposition":
                if found is not None:
                    raise broken("a part is named twice")
                found = _named(value.strip())
            case b"content-transfer-encoding" if value.strip().lower() not in (b"binary", b"8bit"):
                raise broken("a part is encoded")
    if found is None:
        raise broken("a part has no name")
    return found


def _named(value: bytes) -> Head:
    if _DISPOSITION.match(value) is None:
        raise broken("a part is not form-data")
    given = {
        name.lower(): re.sub(rb"\\(.)", rb"\1", quoted) if quoted else plain
        for name, quoted, plain in _PARAMETER.findall(value)
    }
    if b"name" not in given:
        raise broken("a part has no name")
    filename = given.get(b"filename")
    if (extended := given.get(b"filename*")) is not None:
        charset, _, rest = extended.partition(b"'")
        if charset.lower() != b"utf-8":
            raise broken("a file's name is not UTF-8")
        filename = unquote_to_bytes(rest.partition(b"'")[2])
    return Head(_text(given[b"name"]), None if filename is None else _text(filename))


def _text(raw: bytes) -> str:
    try:
        found = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise broken("a name is not UTF-8") from None
    return found.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


async def read_form(
    receive: Receive, content_type: str, patience_s: float
) -> AsyncIterator[Head | Piece]:
    """A request's body as a form. What comes has `patience_s`, and more for each byte that has
    come. Raises Refused: 400, 408, 415, or that the client is gone."""
    form = Form(boundary_of(content_type))
    begun_s, num_bytes = time.monotonic(), 0
    more = True
    while more:
        left_s = begun_s + patience_s + num_bytes / MIN_BYTES_PER_S - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                message = await receive()
        except TimeoutError:
            text = f"the form came slower than {MIN_BYTES_PER_S >> 10} KiB a second"
            raise Refused(408, text, "receive_timeout", close=True) from None
        if message["type"] == "http.disconnect":
            raise client_gone()
        content = message.get("body", b"")
        num_bytes += len(content)
        more = message.get("more_body", False)
        for part in form.feed(content):
            yield part
    if not form.ended:
        raise broken("its end is missing")
