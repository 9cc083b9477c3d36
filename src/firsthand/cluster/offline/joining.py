"""What became of the parts, as what one process would have given: the same lines, books and ledger.

Owns: which parts have to be run again because an earlier one has their keys; the joining of
outputs, quarantines, keys and counts, part by part, each all or nothing.
May not know: who runs a part, or where.
Read next: `part.py`; `../../data/ledger.py`.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from firsthand.cluster.offline.part import LEDGER, OUTPUT, Task
from firsthand.cluster.offline.plan import Plan, moved, open_part
from firsthand.data.job import Job
from firsthand.data.ledger import Ledger, Output, read_ledger
from firsthand.data.pipeline import SINK
from firsthand.data.record import Position, Reason, Record, Rejected, content_sha256, rejected
from firsthand.data.running import check_fact
from firsthand.data.sink import Sink
from firsthand.data.source import Flaw
from firsthand.errors import SourceRefused
from firsthand.files import sync

SAME = ("contract", "contract_sha256", "transforms", "engine_part", "source_part", "source_name")
TOUCHED = (  # keys of which a part believed another thing than is so
    "SELECT 1 FROM part.claims WHERE (digest IN (SELECT digest FROM main.seen))"
    " != (digest IN (SELECT digest FROM part.taken)) LIMIT 1"
)
TAKEN = (
    "SELECT digest FROM part.claims WHERE digest IN (SELECT digest FROM main.seen) ORDER BY digest"
)
ADD = "INSERT OR IGNORE INTO main.seen SELECT digest FROM part.seen"


def newest(folder: Path, number: int) -> str | None:
    """The folder of a part as it was run last; None: it has not been, to its end."""
    found = [path.name for path in folder.glob(f"{_name(number)}*") if "." not in path.name]
    return max(found, default=None)


def _name(number: int) -> str:
    return f"part-{number:06}"


def first_task(plan: Plan, number: int) -> Task:
    return Task(plan.parts[number], _name(number))


def tasks_again(ledger: Ledger, folder: Path, plan: Plan, joined: int) -> list[Task]:
    """Those of the parts behind the `joined` first that took a key which an earlier one has, or
    left one to it that it has not. The first of them is right when it has been run; so this ends
    after as many rounds as there are parts, and mostly after one."""
    tasks = []
    with closing(sqlite3.connect("", isolation_level=None)) as keys:
        keys.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        keys.execute("PRAGMA synchronous = OFF")
        begun = ledger.connection.execute("SELECT digest FROM seen")
        keys.executemany("INSERT INTO seen VALUES (?)", begun)
        for part in plan.parts[joined:]:
            name = str(newest(folder, part.number))
            with _attached(keys, folder / name):
                if keys.execute(TOUCHED).fetchone() is not None:
                    digests = b"".join(row[0] for row in keys.execute(TAKEN))
                    tasks.append(_again(folder, Task(part, name), digests))
                keys.execute(ADD)
    return tasks


def _again(folder: Path, last: Task, digests: bytes) -> Task:
    base, _, count = last.name.partition("+")
    count = count.partition("-")[0]
    name = f"{base}+{int(count or 0) + 1:03}-{hashlib.sha256(digests).hexdigest()[:16]}"
    taken = f"{name}.taken"
    write_whole(folder / taken, digests)
    return Task(last.part, name, taken, last.name)


def write_whole(path: Path, content: bytes) -> None:
    """There as a whole, or not at all."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    new.rename(path)
    sync(path.parent)


@contextmanager
def _attached(connection: sqlite3.Connection, folder: Path) -> Iterator[None]:
    path = str(folder / LEDGER)
    connection.execute("ATTACH ? AS part", (path,))
    try:
        yield
    finally:
        connection.execute("DETACH part")


def join(job: Job, plan: Plan, folder: Path, number: int, ledger: Ledger, sink: Sink) -> None:
    """One part behind those that were joined before, in one commit. Raises SourceRefused: it is not
    of this job, or not what its ledger says."""
    place = folder / str(newest(folder, number))
    with closing(read_ledger(place / LEDGER)) as part, (place / OUTPUT).open("rb") as lines:
        _check(ledger, part)
        before = ledger.position.record
        _join_outputs(job, plan, number, part, lines, ledger, sink)
        for held in part.all_held():
            position = moved(held.position, before)
            reason = Reason(held.reason)
            again = (held.raw, held.sha256, held.stage, reason, held.detail, held.field)
            ledger.hold(Rejected(position, *again), held.id)
        ledger.pass_over_all(part.books.duplicates, part.fact("doubles") or [])
        ledger.add_all_seen(part.connection.execute("SELECT digest FROM seen"))
        end = part.position
        position = moved(end, before) if end.record else ledger.position
    ledger.set_fact("joined", [number + 1, [*position]])
    ledger.commit(position, sink.flush())


def _check(ledger: Ledger, part: Ledger) -> None:
    for name in SAME:
        if part.fact(name) != ledger.fact(name):
            raise SourceRefused(name, f"is not what this run began with; {part.path} has another")
    for name in ("source_facts", "model"):
        if (found := part.fact(name)) is not None:
            check_fact(ledger, name, found)
    part.check_books(part.position.record)


def _join_outputs(
    job: Job,
    plan: Plan,
    number: int,
    part: Ledger,
    lines: BinaryIO,
    ledger: Ledger,
    sink: Sink,
) -> None:
    before = ledger.position.record
    for count, output in enumerate(part.outputs(), 1):
        lines.seek(output.place)
        line = lines.read(output.place_bytes)
        if hashlib.sha256(line).digest() != output.output_sha256:
            raise SourceRefused(str(part.path), f"{output.id.hex()} is not what was written")
        position = moved(output.position, before)
        try:
            at, num_bytes = sink.add(output.id, line)
        except Flaw as flaw:
            record = _read_again(job, plan, number, output)
            sha256 = content_sha256(record)
            held = rejected(position, record.raw, SINK, flaw.reason, flaw.detail, sha256=sha256)
            ledger.hold(held, output.id)
            continue
        ledger.put(replace(output, position=position, place=at, place_bytes=num_bytes))
        if count % job.file.checkpoint_records == 0:
            sink.flush()


def _read_again(job: Job, plan: Plan, number: int, output: Output) -> Record | Rejected:
    """The record of an output for which the sink has no place."""
    part, place = plan.parts[number], output.position
    behind = Position(place.record - 1, place.line, place.offset, 0, 0)
    with closing(open_part(job, plan, part, behind)) as source:
        return next(iter(source))
