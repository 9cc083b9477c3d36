"""Where a source is cut, so that its parts together are the records of the whole.

Owns: the parts, and that every position in one is what it is in the whole.
May not know: workers, ledgers.
Read next: `part.py`, which runs one; `../../data/sources/files.py`.

The plan decides once what one process decides once: the encoding, the delimiter, the columns. A
file of JSON lines is cut at line ends; one of CSV is read through for its rows, because whether a
line begins one depends on every quote before it; Parquet is cut between row groups. Nothing else
has parts, and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from firsthand.data.encoding import Encoding
from firsthand.data.job import Job
from firsthand.data.lines import read_lines
from firsthand.data.opening import open_source
from firsthand.data.record import START, Position, Record, Rejected
from firsthand.data.running import said_of
from firsthand.data.source import Limits, Source, SourceFacts
from firsthand.data.sources.files import BUFFER_BYTES, Reading, kind_of, open_file
from firsthand.errors import InvalidRequest, SourceRefused
from firsthand.values import dataclass

PART_BYTES = 64 << 20  # of a file, at most, where nobody says how many parts
PARTS_PER_WORKER = 4  # so that all end at about the same time
VERSION = 1
NO_PARTS = {
    "json": "the brackets of an array are known from its beginning alone",
    "sql": "a query is read as one view of its database",
}


@dataclass(frozen=True, slots=True)
class Part:
    """`begin`: the position behind which it begins. `end`: the byte (of Parquet: the number of
    rows) at which it ends; None: where the source does."""

    number: int
    begin: Position
    end: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`facts`: what a ledger says of the source; every part has to find the same."""

    after: Position
    facts: dict[str, Any]
    parts: tuple[Part, ...]

    def text(self) -> str:
        parts = [[part.number, part.begin, part.end] for part in self.parts]
        return json.dumps([VERSION, self.after, self.facts, parts], ensure_ascii=False)


def plan_of(text: str) -> Plan:
    """The other way around. Raises SourceRefused."""
    try:
        version, after, facts, parts = json.loads(text)
        if version != VERSION:
            raise ValueError(f"version {version}")
        found = tuple(Part(number, Position(*begin), end) for number, begin, end in parts)
        return Plan(Position(*after), facts, found)
    except (ValueError, TypeError) as error:
        raise SourceRefused("plan", f"is none of ours: {str(error)[:200]}") from error


def make_plan(job: Job, after: Position, num_workers: int, num_parts: int | None) -> Plan:
    """Of what lies behind `after`. Raises SourceRefused; InvalidRequest: it has no parts."""
    source = job.file.source
    path = None if source.path is None else job.folder / source.path
    kind = str(source.kind) if path is None else kind_of(path, source.kind)
    if path is None or kind in NO_PARTS:
        why = NO_PARTS.get(kind, "its messages are shared out by itself, to all that read it")
        raise InvalidRequest("source.kind", f"{kind} has no parts: {why}; run it without --ray")
    with closing(open_source(job, after)) as opened:
        facts = opened.facts
        num = num_parts or _num_parts(facts, num_workers)
        size = (facts.size or 0) - (after.record if kind == "parquet" else after.end)
        begins = [after, *_begins(path, opened, after, max(1, -(-size // num)))]
    return Plan(after, said_of(facts), tuple(_between(begins, kind)))


def _num_parts(facts: SourceFacts, num_workers: int) -> int:
    size = 0 if facts.kind == "parquet" else facts.size or 0
    return max(PARTS_PER_WORKER * num_workers, -(-size // PART_BYTES))


def _between(begins: Sequence[Position], kind: str) -> Iterator[Part]:
    for number, begin in enumerate(begins):
        if number + 1 == len(begins):
            yield Part(number, begin, None)
        else:
            following = begins[number + 1]
            yield Part(number, begin, following.record if kind == "parquet" else following.offset)


def _begins(path: Path, source: Source, after: Position, step: int) -> Iterator[Position]:
    """Of the parts after the first one, each at least `step` bytes or rows behind the one before.

    Records of a text are counted from the part's own beginning: how many stand before it is known
    when those are read. Lines are counted here."""
    facts = source.facts
    if facts.kind == "parquet":
        return _group_cuts(path, after, step)
    if facts.kind == "csv":
        places = ((row.position.line, row.position.offset) for row in source)
        return _cuts(places, after.end, step)
    assert facts.encoding is not None
    return _cuts(_lines(path, facts.encoding, after), after.end, step)


def _lines(path: Path, encoding: Encoding, after: Position) -> Iterator[tuple[int, int]]:
    start = after.end or encoding.mark_bytes
    with path.open("rb", buffering=BUFFER_BYTES) as stream:
        stream.seek(start)
        limit = Limits().record_bytes
        for line in read_lines(stream, limit, start, after.last_line, encoding.newline):
            yield line.number, line.offset


def _cuts(places: Iterable[tuple[int, int]], start: int, step: int) -> Iterator[Position]:
    target = start + step
    for line, offset in places:
        if offset >= target:
            yield Position(0, line, offset, 0, 0)
            target = offset + step


def _group_cuts(path: Path, after: Position, step: int) -> Iterator[Position]:
    from firsthand.data.sources.parquet import rows_of_groups

    num_rows, target = 0, after.record + step
    for num in rows_of_groups(path):
        if num_rows >= target:
            yield Position(num_rows, num_rows, 0, 0)
            target = num_rows + step
        num_rows += num


class PartSource:
    """The records of one part. They are numbered from its own beginning; all else of a position is
    as in the whole."""

    def __init__(self, source: Source, part: Part) -> None:
        self._source = source
        self._part = part
        self.facts = source.facts
        self.check, self.done, self.close = source.check, source.done, source.close

    def __iter__(self) -> Iterator[Record | Rejected]:
        end, num_before = self._part.end, self._part.begin.record
        in_rows = self.facts.kind == "parquet"
        for record in self._source:
            position = record.position
            if end is not None and (position.record > end if in_rows else position.offset >= end):
                return
            if num_before:
                record = replace(record, position=moved(position, -num_before))
            yield record


def moved(position: Position, by: int) -> Position:
    return position._replace(record=position.record + by)


def open_part(job: Job, plan: Plan, part: Part, after: Position) -> Source:
    """`after`: as the part's own run has it. Raises SourceRefused: the source is another one."""
    place = part.begin if after == START else moved(after, part.begin.record)
    said, decision = job.file.source, plan.facts["decision"]
    encoding = None if decision is None else Encoding(**decision)
    reading = Reading(said.kind, encoding, plan.facts["delimiter"])
    source = open_file(job.folder / str(said.path), reading, job.contract, place)
    return PartSource(source, part)
