"""The name of a record: the same whenever it is read again.

Owns: what goes into the name.
May not know: where it is used.
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
