"""One part, run to its end by the run that a whole job has, in a folder of its own.

Owns: what a worker does with a part, which keys it asked about, and that the folder is there only
when all of it is.
May not know: the other parts, the job's own output; Ray.
Read next: `../../data/running.py`, which runs it; `joining.py`.

A part cannot know which keys the parts before it have taken. It writes down each one that it asked
about; where an earlier part turns out to have taken one, it is run again, told those, and asks the
engine for nothing that it has an answer to. So what is a duplicate depends on the order of the
records alone, however the source was cut.

The folder has another name while it is worked on, and its own when the part is whole: a worker that
dies leaves the first, with a ledger by which the next goes on, and counts the deaths as every run
does. `scratch` is where that folder is, if not beside the finished ones: on the disk of the node,
say.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO

from firsthand.cluster.offline.plan import Part, Plan, open_part
from firsthand.data.books import Books
from firsthand.data.engines import Engine, EngineFacts, Reply
from firsthand.data.forms import JobForm
from firsthand.data.job import Job
from firsthand.data.ledger import Ledger, open_ledger, read_ledger
from firsthand.data.pipeline import ENGINE
from firsthand.data.record import Accepted, Position, Reason
from firsthand.data.run_parts import Form, Request
from firsthand.data.running import How, run_job
from firsthand.data.source import Flaw, Source
from firsthand.errors import CapacityExceeded, FirsthandError
from firsthand.files import sync
from firsthand.values import dataclass

OUTPUT, LEDGER = "output.jsonl", "ledger"
DIGEST_BYTES = 16
ORPHAN_S = 60.0  # how long a worker of an earlier run may still be at it
AGAIN_S = 0.2
TABLES = """
CREATE TABLE claims (digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE taken (digest BLOB PRIMARY KEY) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Task:
    """A part, to be run into the folder `name`. `taken`: the file of the keys that are taken before
    it begins; `earlier`: the folder of the last time that it was run."""

    part: Part
    name: str
    taken: str | None = None
    earlier: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What all parts of a run share."""

    job: Job
    plan: Plan
    folder: Path
    scratch: Path | None


def run_part(setting: Setting, task: Task, open_engine: Callable[[], Engine] | None) -> Books:
    """Its books; it may be run again, also at the same time. Raises what `run_job` does."""
    whole, work = setting.folder / task.name, _work_folder(setting, task)
    job = setting.job.elsewhere(work / OUTPUT, work / LEDGER)
    until_s = time.monotonic() + ORPHAN_S
    while not whole.is_dir():
        try:
            work.mkdir(parents=True, exist_ok=True)
            with closing(open_ledger(job.ledger, job.facts())) as ledger:
                _prepare(ledger, setting.folder, task)
        except CapacityExceeded:  # a worker of an earlier run has it still
            if time.monotonic() > until_s:
                raise
            time.sleep(AGAIN_S)
            continue
        _run(setting, task, job, open_engine)
        _finish(work, whole)
    with closing(read_ledger(whole / LEDGER)) as ledger:
        return ledger.books


def tried(
    setting: Setting, task: Task, open_engine: Callable[[], Engine] | None
) -> Books | Exception:
    """What ends one part ends no other."""
    try:
        return run_part(setting, task, open_engine)
    except (FirsthandError, OSError) as error:
        return error


def _work_folder(setting: Setting, task: Task) -> Path:
    if setting.scratch is None:
        return setting.folder / f"{task.name}.work"
    run = hashlib.sha256(f"{setting.folder}\0{setting.plan.text()}".encode()).hexdigest()[:16]
    return setting.scratch / f"{run}-{task.name}.work"


def _prepare(ledger: Ledger, folder: Path, task: Task) -> None:
    """Once: the tables of a part, and what other parts have taken."""
    if ledger.fact("part") is not None:
        return
    for statement in TABLES.split(";"):
        ledger.connection.execute(statement)
    digests = b"" if task.taken is None else (folder / task.taken).read_bytes()
    for at in range(0, len(digests), DIGEST_BYTES):
        digest = digests[at : at + DIGEST_BYTES]
        ledger.add_seen(digest)
        ledger.connection.execute("INSERT INTO taken VALUES (?)", (digest,))
    ledger.set_fact("part", task.part.number)
    ledger.commit_facts()


def _run(setting: Setting, task: Task, job: Job, open_engine: Callable[[], Engine] | None) -> None:
    def source_of(job: Job, after: Position) -> Source:
        return open_part(job, setting.plan, task.part, after)

    how = How(resume=True, source_of=source_of, journal_of=ClaimsJournal)
    with ExitStack() as opened:
        form_of = None
        if task.earlier is not None and open_engine is not None:
            form_of = _answered(setting.folder / task.earlier, job, opened)
        run_job(job, open_engine, how, form_of)


def _answered(earlier: Path, job: Job, opened: ExitStack) -> Callable[[EngineFacts | None], Form]:
    ledger = opened.enter_context(closing(read_ledger(earlier / LEDGER)))
    stream = opened.enter_context((earlier / OUTPUT).open("rb"))
    return lambda facts: Answered(JobForm(job, facts), ledger, stream)


def _finish(work: Path, whole: Path) -> None:
    """Another worker that has the same part may have been first: both have the same result."""
    new = work
    if work.parent.stat().st_dev != whole.parent.stat().st_dev:
        new = whole.with_name(f"{whole.name}.{uuid.uuid4().hex}.new")
        shutil.copytree(work, new)
    for path in (*new.iterdir(), new):
        sync(path)
    try:
        new.rename(whole)
    except OSError:
        if not whole.is_dir():
            raise
    sync(whole.parent)
    for left in (work, new):
        shutil.rmtree(left, ignore_errors=True)


class ClaimsJournal:
    """The ledger of a part: it keeps each key that was asked about, also of what was refused or
    was a duplicate in the part itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.add_seen, self.put, self.hold = ledger.add_seen, ledger.put, ledger.hold
        self.pass_over, self.commit = ledger.pass_over, ledger.commit

    @property
    def books(self) -> Books:
        return self._ledger.books

    @property
    def position(self) -> Position:
        return self._ledger.position

    def has_seen(self, digest: bytes) -> bool:
        self._ledger.connection.execute("INSERT OR IGNORE INTO claims VALUES (?)", (digest,))
        return self._ledger.has_seen(digest)


class Answered:
    """The form of a part that is run again: what the engine said of a record, it is not asked."""

    def __init__(self, form: Form, earlier: Ledger, lines: BinaryIO) -> None:
        self._form = form
        self._earlier = earlier
        self._lines = lines

    def request(self, item: Accepted, identity: bytes) -> Request | None:
        """Raises Flaw."""
        if self._earlier.output(identity) is not None:
            return None
        held = self._earlier.held_as(identity)
        if held is not None and held.stage == ENGINE:
            raise Flaw(Reason(held.reason), held.detail)
        return self._form.request(item, identity)

    def line(self, item: Accepted, identity: bytes, sha256: str, reply: Reply | None) -> bytes:
        output = self._earlier.output(identity) if reply is None else None
        if output is None:
            return self._form.line(item, identity, sha256, reply)
        self._lines.seek(output.place)
        return self._lines.read(output.place_bytes)

    def refusal(self, item: Accepted, identity: bytes, reply: Reply) -> bytes | None:
        return self._form.refusal(item, identity, reply)
