"""The hash of a set of records: the same content is the same hash, in whatever file it lies.

Owns: the hash of a record, and both ways to join those of many.
May not know: where the records come from.
Read next: `check.py`, which gives records that keep a contract.

A record's hash is that of its values in canonical JSON, so neither the order of its fields nor the
form of its file counts. In order, the set's hash is that of the records' hashes. Without, each is
drawn out to 2,048 bits and they are added, so that no list of them has to be kept or sorted, and
none can be left out or doubled unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from firsthand.canonical import canonical

_WIDTH_BYTES: Final = 256


def set_hash(records: Iterable[Mapping[str, Any]], *, any_order: bool = False) -> tuple[str, int]:
    """The hash in hexadecimal and the number of records."""
    chained, total, count = hashlib.sha256(), 0, 0
    for values in records:
        count += 1
        content = canonical(values)
        if any_order:
            drawn = hashlib.shake_256(content).digest(_WIDTH_BYTES)
            total = (total + int.from_bytes(drawn)) % (1 << 8 * _WIDTH_BYTES)
        else:
            chained.update(hashlib.sha256(content).digest())
    if any_order:
        chained.update(total.to_bytes(_WIDTH_BYTES))
    chained.update(b"any order" if any_order else b"in order")
    chained.update(count.to_bytes(8))
    return chained.hexdigest(), count
