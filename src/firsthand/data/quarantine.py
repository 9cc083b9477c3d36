"""Records that were refused, mended and sent the same way again, exactly once.

Owns: how a held record is read again, and that what comes of it takes its place in the books.
May not know: how a record is answered or written.
Read next: `ledger.py`, which keeps them; `running.py`.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

from firsthand.data.books import Books
from firsthand.data.encoding import declared
from firsthand.data.engines import Engine, facts_of
from firsthand.data.forms import JobForm
from firsthand.data.job import Job
from firsthand.data.ledger import DOUBLE, REPLAYED, Held, Ledger, Output, read_ledger
from firsthand.data.opening import open_sink
from firsthand.data.pipeline import Run
from firsthand.data.record import START, Duplicate, Position, Record, Rejected
from firsthand.data.run_parts import RunOptions
from firsthand.data.running import FormOf, Tell, staged
from firsthand.data.source import Flaw, SourceFacts, Unmoved, decoded, refused
from firsthand.data.sources.csv_file import CsvReader
from firsthand.data.sources.jsonl import parse_object
from firsthand.errors import CapacityExceeded, InvalidRequest, SourceRefused


def fix(ledger: Ledger, number: int, content: bytes) -> None:
    """What is to be read in place of a held record: one JSON object. Raises InvalidRequest."""
    if ledger.held(number).state != "held":
        raise InvalidRequest("number", f"{number} has left the quarantine")
    try:
        parse_object(decoded(content, declared("utf-8")))
    except Flaw as flaw:
        raise InvalidRequest("record", f"{flaw.reason}: {flaw.detail}") from None
    ledger.mend(number, content)
    ledger.commit_facts()


def replay(
    job: Job,
    open_engine: Callable[[], Engine] | None,
    numbers: Sequence[int] | None,
    tell: Tell = lambda progress: None,
    form_of: FormOf | None = None,
) -> tuple[Books, Books]:
    """Held records once more through contract, transforms, engine and sink. None: those that were
    mended. The contract may be another one by now. The books of the replay, and of all runs."""
    try:
        with ExitStack() as opened:
            ledger = opened.enter_context(closing(read_ledger(job.ledger, writes=True)))
            chosen = _chosen(ledger, numbers)
            before = _copy(ledger.books)
            sink = opened.enter_context(closing(open_sink(job, ledger.fact("sink"))))
            engine = None
            if open_engine is not None and chosen:
                engine = opened.enter_context(closing(open_engine()))
            part = job.file.engine
            name = part.name if part is not None else None
            facts = None if engine is None else facts_of(engine, name)
            shown = opened.enter_context(closing(read_ledger(job.ledger)))
            source = HeldSource(shown, chosen)
            options = RunOptions(checkpoint_records=job.file.checkpoint_records, sample=0)
            form = (form_of or partial(JobForm, job))(facts)
            journal = ReplayJournal(ledger)
            items = staged(job, source)
            Run(source, items, form, engine, sink, journal, journal.identify, options, tell).run()
            ledger.check_books(ledger.position.record)
            return _difference(ledger.books, before, len(chosen)), ledger.books
    except sqlite3.Error as error:
        raise CapacityExceeded(f"{job.ledger}: {error}") from error


def _chosen(ledger: Ledger, numbers: Sequence[int] | None) -> list[int]:
    held = {one.number: one for one in ledger.all_held()}
    if numbers is None:
        return [number for number, one in held.items() if one.fixed is not None]
    for number in numbers:
        if number not in held:
            raise SourceRefused(f"quarantine {number}", "is not held")
        if held[number].fixed is None and not held[number].is_whole:
            raise SourceRefused(f"quarantine {number}", "only its start was kept; mend it first")
    return sorted(set(numbers))


def _copy(books: Books) -> Books:
    return Books(books.accepted, books.quarantined, books.duplicates)


def _difference(books: Books, before: Books, num: int) -> Books:
    accepted, duplicates = books.accepted - before.accepted, books.duplicates - before.duplicates
    return Books(accepted, num - accepted - duplicates, duplicates)


class HeldSource(Unmoved):
    """Held records as a source; the number of each is its mark."""

    def __init__(self, ledger: Ledger, numbers: Sequence[int]) -> None:
        self._ledger = ledger
        self._numbers = numbers
        found = ledger.fact("source_facts") or {}
        self._encoding = declared(found.get("encoding") or "utf-8")
        self._columns, self._delimiter = found.get("columns") or [], found.get("delimiter")
        self.facts = SourceFacts("held", str(ledger.path), size=len(numbers))
        self._is_csv = found.get("kind") == "csv"

    def __iter__(self) -> Iterator[Record | Rejected]:
        for count, number in enumerate(self._numbers, 1):
            held = self._ledger.held(number)
            content = held.raw if held.fixed is None else held.fixed
            position = Position(count, held.position.line, 0, 0, 1, number)
            try:
                yield self._record(held, position, content)
            except Flaw as flaw:
                yield refused(position, content, flaw)

    def _record(self, held: Held, position: Position, content: bytes) -> Record:
        """Raises Flaw."""
        if held.fixed is None and self._is_csv:
            return self._row(position, content)
        encoding = declared("utf-8") if held.fixed is not None else self._encoding
        text = decoded(content, encoding)
        return Record(position, content, parse_object(text), text)

    def _row(self, position: Position, content: bytes) -> Record:
        """A row of texts; its fields are read as those of a table, not of an object."""
        newline = self._encoding.newline
        delimiter = self._delimiter or ","
        header = delimiter.join(f'"{name}"' for name in self._columns)
        encoded = header.encode(self._encoding.name or "utf-8") + newline
        stream: Any = io.BufferedReader(io.BytesIO(encoded + content))
        for row in CsvReader(stream, self._encoding, delimiter):
            if isinstance(row, Rejected):
                raise Flaw(row.reason, row.detail)
            return Record(position, content, row.fields, from_texts=True)
        raise SourceRefused("quarantine", "holds an empty row")

    def close(self) -> None: ...


class ReplayJournal:
    """A ledger in which an outcome takes the place of a held record."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.position = START

    @property
    def books(self) -> Books:
        return self._ledger.books

    def identify(self, position: Position, sha256: str) -> bytes:
        """The name that it had when it was read first."""
        return self._ledger.held(position.mark).id

    def has_seen(self, digest: bytes) -> bool:
        return self._ledger.has_seen(digest)

    def add_seen(self, digest: bytes) -> None:
        self._ledger.add_seen(digest)

    def put(self, output: Output) -> None:
        held = self._ledger.held(output.position.mark)
        self._ledger.put(replace(output, position=held.position))
        self._ledger.release(held.number, REPLAYED)

    def hold(self, rejected: Rejected, identity: bytes) -> None:
        self._ledger.say_again(rejected.position.mark, rejected)

    def pass_over(self, duplicate: Duplicate) -> None:
        self._ledger.pass_over(duplicate)
        self._ledger.release(duplicate.position.mark, DOUBLE)

    def commit(self, position: Position, sink: Any) -> None:
        self.position = position
        self._ledger.set_fact("sink", sink)
        self._ledger.commit_facts()


def shown(held: Iterable[Held]) -> Iterator[dict[str, Any]]:
    """For a list or a page: without bytes that no text can hold."""
    for one in held:
        place = one.position
        yield {
            "number": one.number,
            "id": one.id.hex(),
            "state": one.state,
            "stage": one.stage,
            "reason": one.reason,
            "field": one.field,
            "detail": one.detail,
            "record": place.record,
            "line": place.line,
            "offset": place.offset,
            "num_bytes": place.num_bytes,
            "mark": place.mark,
            "sha256": one.sha256,
            "raw": one.raw.decode("utf-8", "backslashreplace"),
            "fixed": None if one.fixed is None else one.fixed.decode(),
        }
