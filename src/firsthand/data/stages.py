"""What lies between a source and a sink: generators over one record at a time.

Owns: the stages that every run has: the contract, the transforms, and each key once.
May not know: where records come from or go to.
Read next: `transforms.py`, `check.py`.

A stage takes and gives an iterator, passes on what is not its own business, and can be tested with
a list. A file and a queue go through the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from firsthand.data.contract import Broken, Checker, Contract
from firsthand.data.plain import NotPlain, check_plain
from firsthand.data.record import Accepted, Duplicate, Reason, Record, Rejected, rejected
from firsthand.data.seen import Seen
from firsthand.data.transforms import Transform

CONTRACT = "contract"  # the stage of what a contract refuses


def checked(
    records: Iterable[Record | Rejected], checker: Checker
) -> Iterator[Accepted | Rejected]:
    """Records against a contract."""
    key_name = checker.contract.key
    for record in records:
        if isinstance(record, Rejected):
            yield record
            continue
        try:
            values = _values(record, checker)
        except Broken as broken:
            place, raw = record.position, record.raw
            yield rejected(place, raw, CONTRACT, broken.reason, broken.detail, field=broken.field)
            continue
        found = values.model_dump()
        key = None if key_name is None else str(found[key_name])
        yield Accepted(record, key, found, [] if key is None else [("key", key)])


def transformed(
    items: Iterable[Accepted | Rejected], transforms: Sequence[Transform]
) -> Iterator[Accepted | Rejected]:
    """Each transform in turn. What one raises refuses that record, and no other."""
    for item in items:
        outcome = item
        for transform in transforms:
            if isinstance(outcome, Rejected):
                break
            outcome = _transformed(outcome, transform)
        yield outcome


def _transformed(item: Accepted, transform: Transform) -> Accepted | Rejected:
    try:
        done = transform.apply(item)
        check_plain(done.values)
        return done
    except Broken as broken:
        reason, detail, field = broken.reason, broken.detail, broken.field
    except NotPlain as broken:
        reason, detail, field = Reason.INVALID, broken.detail, broken.field
    except (Exception, SystemExit, GeneratorExit) as error:  # the user's code may raise anything
        reason, detail, field = Reason.FAILED, f"{type(error).__name__}: {error}"[:200], None
    record = item.record
    return rejected(record.position, record.raw, transform.name, reason, detail, field=field)


def _values(record: Record, checker: Checker) -> Contract:
    if record.from_texts:
        return checker.texts(record.fields)
    if record.json is not None:
        return checker.json(record.json)
    return checker.fields(record.fields)


def unique(
    items: Iterable[Accepted | Rejected], seen: Seen
) -> Iterator[Accepted | Rejected | Duplicate]:
    """Each key once, the first time it is accepted. A refused record takes no key, and neither
    does a duplicate."""
    for item in items:
        if isinstance(item, Accepted) and not seen.take(item.claims):
            yield Duplicate(item.position, item.key or item.claims[-1][1])
        else:
            yield item
