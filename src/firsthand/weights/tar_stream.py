"""The files of a tar archive, read once from front to back, in bounded memory.

Owns: the headers of an archive: POSIX ustar and pax, GNU's long names.
May not know: where the archive comes from, what becomes of a file.
Read next: `oci.py`, whose layers may be archives.

A link, a device or a sparse file ends the reading: a model has none. Names are given as they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from firsthand.errors import CheckpointError
from firsthand.values import dataclass

BLOCK: Final = 512
MAX_EXTENDED_BYTES: Final = 1 << 16
_FILES, _FOLDER, _LONG_NAME, _PAX = b"0\0007", b"5", b"L", b"xg"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A regular file. `chunks` must be taken before the next member is asked for."""

    name: str
    num_bytes: int
    chunks: Iterator[bytes]


def members(stream: BinaryIO, file: str) -> Iterator[Member]:
    """`file` names the archive in errors. Raises CheckpointError for what is no such archive, or
    ends too early."""
    extended: dict[str, str] = {}
    while (header := _exactly(stream, BLOCK, file)).strip(b"\0"):
        kind, size = header[156:157], _checked_size(header, file)
        if kind in _PAX or kind == _LONG_NAME:
            if size > MAX_EXTENDED_BYTES:
                raise CheckpointError(file, f"an extended header of {size} bytes")
            body = _exactly(stream, -(-size // BLOCK) * BLOCK, file)[:size]
            if kind == _LONG_NAME:
                extended["path"] = body.rstrip(b"\0").decode("utf-8", "replace")
            elif kind == b"x":
                extended |= _records(body, file)
            continue
        name = extended.get("path") or _name(header)
        if kind in _FILES:
            told = extended.get("size", "")
            num_bytes = int(told) if told.isdecimal() and len(told) < 20 else size
            chunks = _chunks(stream, num_bytes, file)
            yield Member(name, num_bytes, chunks)
            for _ in chunks:
                pass  # what the caller has left
        elif kind != _FOLDER:
            raise CheckpointError(file, f"{name[:80]!r} is no regular file, but of kind {kind!r}")
        extended = {}


def _checked_size(header: bytes, file: str) -> int:
    try:
        said = int(header[148:156].strip(b" \0") or b"x", 8)
        size = header[124:136]
        found = (
            int.from_bytes(size[1:], "big")
            if size[0] == 0x80
            else int(size.strip(b" \0") or b"0", 8)
        )
    except ValueError as error:
        raise CheckpointError(file, "is no tar archive") from error
    if said != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
        raise CheckpointError(file, "is no tar archive, or its header is damaged")
    return found


def _name(header: bytes) -> str:
    name, prefix = header[:100], header[345:500] if header[257:263] == b"ustar\0" else b""
    parts = [part.partition(b"\0")[0].decode("utf-8", "replace") for part in (prefix, name)]
    return "/".join(filter(None, parts))


def _records(body: bytes, file: str) -> dict[str, str]:
    """`LENGTH KEY=VALUE` and a line's end; the length counts all of it."""
    found, at = {}, 0
    while at < len(body):
        length = body[at : at + 8].partition(b" ")[0]
        end = at + int(length) if length.isdigit() else 0
        key, equals, value = body[at + len(length) + 1 : end - 1].partition(b"=")
        if not equals or end > len(body):
            raise CheckpointError(file, "an extended header is damaged")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        at = end
    return found


def _chunks(stream: BinaryIO, num_bytes: int, file: str) -> Iterator[bytes]:
    left = num_bytes
    while left:
        chunk = _exactly(stream, min(left, _CHUNK_BYTES), file)
        left -= len(chunk)
        yield chunk
    _exactly(stream, -num_bytes % BLOCK, file)


def _exactly(stream: BinaryIO, num_bytes: int, file: str) -> bytes:
    content = stream.read(num_bytes)
    if len(content) != num_bytes:
        raise CheckpointError(file, "the archive ends too early")
    return content
