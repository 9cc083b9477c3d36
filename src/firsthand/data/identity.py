"""The name of a record: the same whenever it is read again.

Owns: what goes into the name, and what is called after it: the request about it, and its trace.
May not know: files, sockets.
Read next: `pipeline.py`.
"""

from __future__ import annotations

import hashlib

from firsthand.data.record import Position

NUM_BYTES = 16


def identity_of(source: str, position: Position, sha256: str) -> bytes:
    """Of a record by its source, its place there, and its content."""
    place = position.offset if position.mark is None else position.mark
    return hashlib.sha256(f"{source}\0{place}\0{sha256}".encode()).digest()[:NUM_BYTES]


def request_id_of(name: str) -> str:
    """Of what an engine is asked about the record of a name, in hexadecimal."""
    return f"rec-{name}"


def trace_parent(request_id: str) -> str | None:
    """The header `traceparent` of such a request: the record's name is the id of its trace. Another
    request has none."""
    name = request_id.removeprefix("rec-")
    return None if name == request_id else f"00-{name}-{name[:16]}-01"
