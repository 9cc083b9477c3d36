"""The parts of a job on Ray: a pool of workers, each with its engine, that take part after part.

Owns: the pool, what a worker keeps between two parts, what happens when one dies.
May not know: what a part is made of; how parts are joined.
Read next: `part.py`; `running.py`, which hands the parts out.

Ray Data has the pool: it finds room for the workers on the nodes, starts a dead one again, gives a
part to whoever is free and no second one to who is not, and gives a dead worker's part to the next.
Records do not travel through Ray: a worker reads its part from the source and writes it beside the
output, so that order, books and what survives a crash are those of one process. What goes through
Ray is the number of a part, and its books.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.data

from firsthand.cluster.offline.part import Setting, Task, tried
from firsthand.cluster.offline.plan import plan_of
from firsthand.cluster.offline.running import Done, Pool
from firsthand.data.books import Books
from firsthand.data.engines import Engine, Reply
from firsthand.data.job import job_of
from firsthand.errors import (
    BooksUnbalanced,
    CapacityExceeded,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    SourceRefused,
)
from firsthand.server.job_engine import engine_of
from firsthand.values import dataclass
from firsthand.version import VERSION

MAX_STARTS = 60  # of one part: a record that kills costs six, and then leaves
_OF_A_TEXT = (EngineUnavailable, CapacityExceeded, BooksUnbalanced, ModelNotFound)


@dataclass(frozen=True, slots=True)
class Workers:
    """`num_cpus`: of each, and so many threads has its engine. `key`: of the server that is
    asked."""

    num: int
    num_cpus: int
    key: str | None = None


def ray_pool(workers: Workers) -> Pool:
    return partial(_run_all, workers)


def _run_all(workers: Workers, setting: Setting, tasks: Sequence[Task]) -> Iterator[Done]:
    """In the order in which they end. Raises EngineUnavailable: there are no workers."""
    if not tasks:
        return
    _quiet()
    for task in tasks:
        _starts(setting, task).unlink(missing_ok=True)
    given = _Given(
        setting.job.file.model_dump(exclude_unset=True),
        str(setting.job.folder),
        setting.plan.text(),
        str(setting.folder),
        None if setting.scratch is None else str(setting.scratch),
        workers.key,
        workers.num_cpus,
        VERSION,
    )
    size = min(workers.num, len(tasks))
    by_name = {task.name: task for task in tasks}
    rows = [
        {"task": json.dumps([one.part.number, one.name, one.taken, one.earlier])} for one in tasks
    ]
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_args=(given,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
        num_cpus=workers.num_cpus,
    )
    try:
        for row in done.iter_rows():
            name, told = json.loads(row["done"])
            yield by_name[name], _heard(told)
    except ray.exceptions.RayError as error:
        raise EngineUnavailable(f"the workers of Ray ended: {str(error)[:300]}") from error


def _starts(setting: Setting, task: Task) -> Path:
    """A file with a byte for each time that a worker began with a part. Ray starts a dead one again
    without end, which is right for a node that went, but not for a model that no node can load."""
    return setting.folder / f"{task.name}.starts"


def _quiet() -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class _Given:
    """What a worker makes its setting of: a contract and transforms are code, which each worker
    reads from the job's folder, and its ledger says whether it is the same."""

    job: dict[str, Any]
    job_folder: str
    plan: str
    folder: str
    scratch: str | None
    key: str | None
    threads: int
    version: str


class _Worker:
    """In a process of its own. Its engine is opened for the first part that asks for it."""

    def __init__(self, given: _Given) -> None:
        self._version = given.version
        job = job_of(given.job, Path(given.job_folder))
        opens = engine_of(job, given.key, given.threads)
        self._kept = None if opens is None else _Kept(opens)
        scratch = None if given.scratch is None else Path(given.scratch)
        plan = plan_of(given.plan)
        self._setting = Setting(job, plan, Path(given.folder), scratch)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        number, *names = json.loads(batch["task"][0])
        task = Task(self._setting.plan.parts[number], *names)
        with _starts(self._setting, task).open("ab") as starts:
            num = starts.write(b".") and starts.tell()
        done: Books | Exception
        if self._version != VERSION:
            message = f"a node has firsthand {VERSION}, the job was started by {self._version}"
            done = InvalidRequest("address", message)
        elif num > MAX_STARTS:
            done = EngineUnavailable(f"{MAX_STARTS} workers died of {task.name}")
        else:
            done = tried(self._setting, task, self._kept)
        if isinstance(done, EngineUnavailable) and self._kept is not None:
            self._kept.end()
        return {"done": [json.dumps([task.name, _told(done)])]}


def _told(done: Books | Exception) -> dict[str, Any]:
    if isinstance(done, Exception):
        return {"fault": [type(done).__name__, str(done)]}
    return {"books": [done.accepted, done.quarantined, done.duplicates, done.reasons]}


def _heard(told: dict[str, Any]) -> Books | Exception:
    """What a worker has told. An error of any other kind is told as a source that is refused."""
    if "books" in told:
        accepted, quarantined, duplicates, reasons = told["books"]
        return Books(accepted, quarantined, duplicates, Counter(reasons))
    name, text = told["fault"]
    if kind := {one.__name__: one for one in _OF_A_TEXT}.get(name):
        return kind(text)
    head, _, rest = text.partition(": ")
    return InvalidRequest(head, rest) if name == "InvalidRequest" else SourceRefused(head, rest)


class _Kept:
    """An engine that runs use one after the other, though each closes what it has opened."""

    def __init__(self, opens: Callable[[], Engine]) -> None:
        self._opens = opens
        self._engine: Engine | None = None

    def __call__(self) -> Engine:
        self._engine = self._engine or self._opens()
        return self

    @property
    def width(self) -> int:
        return self._opened.width

    @property
    def _opened(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def ask(self, method: str, path: str, content: bytes | None, request_id: str) -> Future[Reply]:
        return self._opened.ask(method, path, content, request_id)

    def close(self) -> None: ...

    def end(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
