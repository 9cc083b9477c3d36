"""A job carried out in parts: begun, gone on with, joined; its books checked part by part.

Owns: the order of rounds (run the parts; run those again whose keys others have; join), and what
survives of them beside the output.
May not know: Ray: whoever runs the parts is handed in.
Read next: `part.py`, `joining.py`; `pool.py`, which runs the parts on Ray.

Beside the output stands a folder, `answers.jsonl.parts`: the plan, and each part that is whole.
The ledger and the output are at every moment those of one process that has read so far: parts are
joined to them in order. A run that was begun in parts may be gone on with by one process, and the
other way around.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from firsthand.cluster.offline.joining import first_task, join, newest, tasks_again, write_whole
from firsthand.cluster.offline.part import Setting, Task
from firsthand.cluster.offline.plan import Plan, make_plan, plan_of
from firsthand.data.books import Books
from firsthand.data.job import Job, place_name
from firsthand.data.ledger import Ledger
from firsthand.data.opening import open_sink
from firsthand.data.run_parts import Progress
from firsthand.data.running import (
    Outcome,
    Tell,
    begin,
    check_fact,
    end,
    outcome_of,
    run_ledger,
)
from firsthand.values import dataclass

PLAN = "plan.json"
Done = tuple[Task, Books | Exception]
Pool = Callable[[Setting, Sequence[Task]], Iterator[Done]]


@dataclass(frozen=True, slots=True)
class HowOffline:
    """`num_parts` None: as `plan.py` thinks right. What an earlier run has planned stays."""

    num_workers: int
    num_parts: int | None = None
    scratch: Path | None = None
    resume: bool = False
    tell: Tell = lambda progress: None


def parts_folder(job: Job) -> Path:
    return job.ledger.with_suffix(".parts")


def run_in_parts(job: Job, how: HowOffline, pool: Pool) -> Outcome:
    """Raises what `run_job` does. Whatever was finished is kept; with `how.resume` another call
    goes on."""
    with run_ledger(job, resume=how.resume) as ledger:
        before, folder = ledger.position, parts_folder(job)
        if not ledger.fact("ended"):
            plan, joined = _plan(job, ledger, folder, how)
            setting = Setting(job, plan, folder, how.scratch)
            try:
                _run_all(setting, ledger, joined, how.tell, pool)
                _join_all(setting, ledger, joined)
            except BaseException:
                with suppress(sqlite3.Error):
                    ledger.give_up()
                    end(ledger, complete=False)
                raise
            end(ledger, complete=True)
        outcome = outcome_of(ledger, before, _sink_name(job))
        shutil.rmtree(folder, ignore_errors=True)
        return outcome


def _sink_name(job: Job) -> str:
    part = job.file.sink
    return place_name(part) if part.path is None else str(job.folder / part.path)


def _plan(job: Job, ledger: Ledger, folder: Path, how: HowOffline) -> tuple[Plan, int]:
    """What is left to do, and how many parts of that are joined. A plan that was made goes on to be
    it, unless one process has read on meanwhile."""
    if ledger.fact("begun") is not None and (folder / PLAN).is_file():
        plan = plan_of((folder / PLAN).read_text(encoding="utf-8"))
        joined = ledger.fact("joined") or [0, [*plan.after]]
        if joined[1] == [*ledger.position]:
            return plan, joined[0]
    plan = make_plan(job, ledger.position, how.num_workers, how.num_parts)
    check_fact(ledger, "source_facts", plan.facts)
    if ledger.fact("sink") is None:
        with closing(open_sink(job, None)) as sink:
            ledger.set_fact("sink", sink.flush())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_whole(folder / PLAN, plan.text().encode())
    ledger.set_fact("joined", None)
    begin(ledger)
    return plan, 0


def _run_all(setting: Setting, ledger: Ledger, joined: int, tell: Tell, pool: Pool) -> None:
    """Until every part that is not joined is there, and none believes another thing of the keys
    before it than is so. One that fails holds no other up."""
    plan, folder, num = setting.plan, setting.folder, len(setting.plan.parts)
    tasks = [first_task(plan, at) for at in range(joined, num) if newest(folder, at) is None]
    begun_s, num_before = time.monotonic(), num - len(tasks)
    known: dict[int, Books] = {}
    while True:
        faults: list[Exception] = []
        for task, done in pool(setting, tasks):
            if isinstance(done, Exception):
                faults.append(done)
                continue
            known[task.part.number] = done
            books, share = Books(), len(known) / num
            for one in known.values():
                books.include(one)
            seconds = time.monotonic() - begun_s
            tell(Progress(books, num_before / num + share, seconds, books.read, share))
        if faults:
            raise faults[0]
        tasks = tasks_again(ledger, folder, plan, joined)
        if not tasks:
            return


def _join_all(setting: Setting, ledger: Ledger, joined: int) -> None:
    job, plan = setting.job, setting.plan
    with closing(open_sink(job, ledger.fact("sink"))) as sink:
        for number in range(joined, len(plan.parts)):
            join(job, plan, setting.folder, number, ledger, sink)
