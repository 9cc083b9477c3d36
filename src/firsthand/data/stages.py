"""What lies between a source and a sink: generators over one record at a time.

Owns: the stages that every run has: the contract, and each key once.
May not know: where records come from or go to.
Read next: `check.py`.

A stage takes and gives an iterator, passes on what is not its own business, and can be tested with
a list. A file and a queue go through the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from firsthand.data.contract import Broken, Checker, Contract
from firsthand.data.record import Accepted, Duplicate, Record, Rejected, rejected
from firsthand.data.seen import Seen

CONTRACT = "contract"  # the stage of what a contract refuses


def checked(
    records: Iterable[Record | Rejected], checker: Checker, from_texts: bool = False
) -> Iterator[Accepted | Rejected]:
    """Records against a contract. `from_texts`: their fields are the cells of a table of texts."""
    key_name = checker.contract.key
    for record in records:
        if isinstance(record, Rejected):
            yield record
            continue
        try:
            values = _values(record, checker, from_texts)
        except Broken as broken:
            place, raw = record.position, record.raw
            yield rejected(place, raw, CONTRACT, broken.reason, broken.detail, field=broken.field)
            continue
        found = values.model_dump()
        key = None if key_name is None else str(found[key_name])
        yield Accepted(record, key, found)


def _values(record: Record, checker: Checker, from_texts: bool) -> Contract:
    if from_texts:
        return checker.texts(record.fields)
    if record.json is not None:
        return checker.json(record.json)
    return checker.fields(record.fields)


def unique(
    items: Iterable[Accepted | Rejected], seen: Seen
) -> Iterator[Accepted | Rejected | Duplicate]:
    """Each key once, the first time it is accepted. A refused record takes no key."""
    for item in items:
        if isinstance(item, Accepted) and item.key is not None and not seen.add(item.key):
            yield Duplicate(item.record.position, item.key)
        else:
            yield item
