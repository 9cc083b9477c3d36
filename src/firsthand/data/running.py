"""A job carried out: begun, gone on with after a crash, tried without effect; its books checked.

Owns: how source, stages, engine, sink and ledger are put together, and what a crash costs a record
that may have caused it.
May not know: the syntax of a source, sockets, models.
Read next: `pipeline.py`.

Whoever dies three times without getting on reads one record at a time, and writes down which before
it begins with it, and how often: the one at which it dies three times goes into quarantine, and the
others do not. Who ends in order, by whatever fault or signal, has not died.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from firsthand.data.books import Books
from firsthand.data.contract import Checker
from firsthand.data.engines import MAX_TRIES, Engine, EngineFacts, facts_of
from firsthand.data.forms import JobForm
from firsthand.data.identity import identity_of
from firsthand.data.job import Job
from firsthand.data.ledger import Ledger, has_begun, open_ledger, read_ledger
from firsthand.data.opening import open_sink, open_source
from firsthand.data.pipeline import Run
from firsthand.data.record import (
    START,
    Accepted,
    Position,
    Reason,
    Record,
    Rejected,
    content_sha256,
    rejected,
)
from firsthand.data.run_parts import Form, Journal, Progress, RunOptions
from firsthand.data.seen import Seen
from firsthand.data.source import Source, SourceFacts
from firsthand.data.stages import checked, transformed, unique
from firsthand.errors import CapacityExceeded, SourceRefused
from firsthand.values import dataclass

RUN = "run"  # the stage of what is refused because the process died of it
FormOf = Callable[[EngineFacts | None], Form]
Tell = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a run, and of those before it that wrote the same output."""

    books: Books
    num_now: int
    ended: bool  # the whole source was read
    sink: str
    source: dict[str, Any]
    doubles: list[tuple[int, str]] = field(default_factory=list)  # the first: line and key


@dataclass(frozen=True, slots=True)
class How:
    """`limit`: so many records in this run; None: all. `one_model`: what answers may not change
    between two runs that write one output. Whoever runs a part of a source says how it is opened,
    and who writes down what became of it."""

    resume: bool = False
    limit: int | None = None
    tell: Tell = lambda progress: None
    one_model: bool = True
    source_of: Callable[[Job, Position], Source] = open_source
    journal_of: Callable[[Ledger], Journal] = lambda ledger: ledger


def run_job(
    job: Job,
    open_engine: Callable[[], Engine] | None,
    how: How,
    form_of: FormOf | None = None,
) -> Outcome:
    """Raises SourceRefused, InvalidRequest, EngineUnavailable, CapacityExceeded, OSError, and
    BooksUnbalanced. Whatever was finished is kept; with `how.resume` another call goes on."""
    with run_ledger(job, resume=how.resume) as ledger, ExitStack() as opened:
        return _run(job, open_engine, how, form_of or partial(JobForm, job), ledger, opened)


@contextmanager
def run_ledger(job: Job, *, resume: bool) -> Iterator[Ledger]:
    """Of a run that begins, or goes on. One that did not come to its beginning leaves none."""
    if not resume and has_begun(job.ledger):
        raise SourceRefused(str(job.ledger), _what_is_there(job))
    try:
        with closing(open_ledger(job.ledger, job.facts())) as ledger:
            try:
                yield ledger
            except BaseException:
                if not has_begun(job.ledger):
                    for ending in ("", "-wal", "-shm"):  # while nobody else can have begun
                        Path(f"{job.ledger}{ending}").unlink(missing_ok=True)
                raise
    except sqlite3.Error as error:
        raise CapacityExceeded(f"{job.ledger}: {error}") from error


def _what_is_there(job: Job) -> str:
    """Why a run does not begin."""
    with closing(read_ledger(job.ledger)) as ledger:
        books, ended = ledger.books, ledger.fact("ended")
    told = "a run has begun; --resume goes on with it"
    if ended:
        told = f"the run is complete ({books.read} read, {books.accepted} out)"
    return f"{told}; without {job.ledger} and its output another can begin"


def _run(
    job: Job,
    open_engine: Callable[[], Engine] | None,
    how: How,
    form_of: FormOf,
    ledger: Ledger,
    opened: ExitStack,
) -> Outcome:
    before, starts = ledger.position, (ledger.fact("starts") or 0) + 1
    source = opened.enter_context(closing(how.source_of(job, before)))
    check_fact(ledger, "source_facts", said_of(source.facts))
    sink = opened.enter_context(closing(open_sink(job, ledger.fact("sink"))))
    if ledger.fact("sink") is None:
        ledger.set_fact("sink", sink.flush())
    engine = facts = None
    over = bool(ledger.fact("ended")) and not source.facts.live
    if open_engine is not None and not over:
        engine = opened.enter_context(closing(open_engine()))
        facts = facts_of(engine, job.file.engine.name if job.file.engine is not None else None)
        if not how.one_model:
            ledger.set_fact("model", None)
        check_fact(ledger, "model", facts.to_dict())
    careful = starts >= MAX_TRIES or ledger.fact("alone") is not None
    begin(ledger, starts)
    identify = partial(identity_of, job.source_name)
    counter = _Counter(source, how.limit)
    records: Iterable[Record | Rejected] = counter
    if careful:
        records = _one_by_one(counter, ledger, identify)
    file = job.file
    options = RunOptions(
        checkpoint_records=file.checkpoint_records,
        checkpoint_s=file.checkpoint_s,
        sample=file.sample,
        patience_s=file.engine.patience_s if file.engine is not None else 0.0,
        careful=careful,
    )
    items = staged(job, records)
    try:
        journal = how.journal_of(ledger)
        Run(source, items, form_of(facts), engine, sink, journal, identify, options, how.tell).run()
    except BaseException:
        with suppress(sqlite3.Error):
            ledger.give_up()
            end(ledger, complete=False)
        raise
    end(ledger, complete=counter.ended)
    return outcome_of(ledger, before, sink.name)


def outcome_of(ledger: Ledger, before: Position, sink: str) -> Outcome:
    """Of a run that began at `before`. Raises BooksUnbalanced."""
    ledger.check_books(ledger.position.record)
    return Outcome(
        ledger.books,
        ledger.position.record - before.record,
        ledger.fact("ended"),
        sink,
        ledger.fact("source_facts"),
        [(line, key) for line, key in ledger.fact("doubles") or ()],
    )


def begin(ledger: Ledger, starts: int = 1) -> None:
    ledger.set_fact("starts", starts)
    ledger.set_fact("begun", ledger.fact("begun") or _now())
    ledger.commit_facts()


def end(ledger: Ledger, *, complete: bool) -> None:
    """This start did not die."""
    ledger.set_fact("starts", 0)
    ledger.set_fact("alone", None)
    ledger.set_fact("ended", complete)
    ledger.set_fact("told", _now())
    ledger.commit_facts()


def staged(job: Job, records: Iterable[Record | Rejected]) -> Iterator[Accepted | Rejected]:
    """Contract and transforms, as every run has them."""
    return transformed(checked(records, Checker(job.contract)), job.transforms)


def try_job(job: Job, limit: int | None) -> Iterator[Accepted | Rejected | Books]:
    """What would be accepted and refused, and the books at the end; nothing is asked or written."""
    with closing(open_source(job, START)) as source, closing(Seen()) as seen:
        books = Books()
        items = unique(staged(job, islice(source, limit)), seen)
        for item in books.count(items):
            if isinstance(item, Accepted | Rejected):
                yield item
        yield books


class _Counter:
    """The records of a source, no more than the limit; whether it came to its end."""

    def __init__(self, source: Source, limit: int | None) -> None:
        self._source = source
        self._limit = limit
        self.ended = False

    def __iter__(self) -> Iterator[Record | Rejected]:
        if self._limit != 0:
            for number, record in enumerate(self._source, 1):
                yield record
                if number == self._limit:
                    return
            self.ended = True


def _one_by_one(
    records: Iterable[Record | Rejected],
    ledger: Ledger,
    identify: Callable[[Position, str], bytes],
) -> Iterator[Record | Rejected]:
    """Each record written down before anything is done with it; the one that was written down each
    time when so many runs died is refused."""
    suspect, num_deaths = ledger.fact("alone") or (None, 0)
    for record in records:
        sha256 = content_sha256(record)
        name = identify(record.position, sha256).hex()
        num_now = num_deaths if name == suspect else 0
        if num_now >= MAX_TRIES:
            why = f"the process died {MAX_TRIES} times at this record"
            place, raw = record.position, record.raw
            yield rejected(place, raw, RUN, Reason.POISON, why, sha256=sha256)
            continue
        ledger.set_fact("alone", [name, num_now + 1])
        ledger.commit_facts()
        yield record


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def said_of(facts: SourceFacts) -> dict[str, Any]:
    """What a ledger keeps of a source."""
    encoding = facts.encoding
    return {
        "kind": facts.kind,
        "name": facts.name,
        "encoding": None if encoding is None else encoding.name,
        "decision": None if encoding is None else encoding.to_dict(),
        "delimiter": facts.delimiter,
        "columns": list(facts.columns),
        "version": facts.version,
        "live": facts.live,
    }


def check_fact(ledger: Ledger, name: str, value: dict[str, Any]) -> None:
    """What is gone on with is what was begun with. Raises SourceRefused."""
    known = ledger.fact(name)
    if known is None:
        ledger.set_fact(name, value)
        return
    for part, now in value.items():
        if known.get(part) != now:
            before = str(known.get(part))[:80]
            message = f"the run began with {part} {before}, and would go on with {str(now)[:80]}"
            raise SourceRefused(name.removesuffix("_facts"), message)
