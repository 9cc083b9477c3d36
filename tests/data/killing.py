"""A run killed at each call that changes a file, and gone on with: run by `test_killed.py`.

Owns: the folders, the kills, the comparison. May not know: pytest. Read next: `kill_shim.c`.

    LD_PRELOAD=shim.so python -m tests.data.killing shim.so FOLDER KIND ERRNO FIRST STEP

One line of JSON: how many calls there are, how many were tried, and each that went wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

from firsthand.data.contract import Contract, NotBlank
from firsthand.data.job import Job, job_of
from firsthand.data.queues.sqlite import SqliteQueue
from firsthand.data.running import How, Outcome, run_job
from firsthand.errors import FirsthandError
from tests.data.jobs import Answers, ask, prompt_of

NUM_RECORDS = 1000
TYPED, OTHER = 3, 4  # how a child ends that met an error


class Row(Contract):
    """As the table has it."""

    key = "request_id"

    id: int
    request_id: str
    text: NotBlank


def records() -> list[dict[str, Any]]:
    """Good ones, and now and then one without a text, or with a key that was there."""
    found = []
    for number in range(NUM_RECORDS):
        record = ask(number if number % 97 else number // 2, f"text {number}")
        found.append(record if number % 101 else {**record, "text": ""})
    return found


def prepare(folder: Path, kind: str) -> Job:
    """A folder with a source, and the job over it."""
    source: dict[str, Any] = {"path": f"in.{kind}"}
    if kind in ("jsonl", "engine"):
        source = {"path": "in.jsonl"}
        text = "".join(json.dumps(one) + "\n" for one in records())
    elif kind == "json":
        text = json.dumps(records())
    elif kind == "csv":
        rows = ["request_id,text", *(f"{one['request_id']},{one['text']}" for one in records())]
        text = "\n".join(rows) + "\n"
    elif kind == "sql":
        _fill_table(folder / "in.db")
        query = "SELECT id, request_id, text FROM asks"
        source = {"kind": "sql", "url": "sqlite:in.db", "query": query, "key": "id"}
        text = ""
    else:
        queue = SqliteQueue(folder / "in.db", "asks", "fill")
        queue.send([(str(n), json.dumps(one).encode()) for n, one in enumerate(records())])
        queue.close()
        source = {"kind": "queue", "url": "sqlite:in.db", "name": "asks", "idle_s": 0.02}
        text = ""
    if "path" in source:
        (folder / source["path"]).write_text(text)
    return job_in(folder, kind, source)


def job_in(folder: Path, kind: str, source: dict[str, Any]) -> Job:
    table: dict[str, Any] = {
        "source": source,
        "sink": {"path": "out.jsonl"},
        "checkpoint_records": 250,
        "checkpoint_s": 600.0,
        "transform": [{"use": "clean", "fields": ["text"]}],
    }
    if kind == "sql":
        table["contract"] = f"{__name__}:Row"
    if kind == "engine":
        table["engine"] = {"url": "http://x"}
    return job_of(table, folder)


def _fill_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE asks (id INTEGER PRIMARY KEY, request_id TEXT, text TEXT)")
    rows = [(number, one["request_id"], one["text"]) for number, one in enumerate(records())]
    connection.executemany("INSERT INTO asks VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()


def run(job: Job, resume: bool) -> Outcome:
    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        return 200, prompt_of(body).upper()

    engine = None if job.file.engine is None else lambda: Answers(rule)
    return run_job(job, engine, How(resume=resume))


def child(job: Job, shim: ctypes.CDLL, at: int, error: int) -> int:
    """Runs the job in a process of its own; how it ended."""
    process = os.fork()
    if process == 0:
        code = 0
        shim.shim_arm(str(job.folder).encode(), ctypes.c_long(at), error)
        try:
            run(job, resume=False)
        except (FirsthandError, OSError):
            code = TYPED
        except BaseException as fault:
            print(repr(fault), file=sys.stderr)
            code = OTHER
        os._exit(code)
    return os.waitpid(process, 0)[1]


def main(arguments: list[str]) -> None:
    library, place, kind, error, first, step = arguments
    shim = ctypes.CDLL(library)
    shim.shim_calls.restype = ctypes.c_long
    folder = Path(place).resolve()
    (folder / "whole").mkdir()
    (folder / "fresh").mkdir()
    prepare(folder / "fresh", kind)
    job = prepare(folder / "whole", kind)
    shim.shim_arm(str(job.folder).encode(), ctypes.c_long(-2), 0)
    wanted = run(job, resume=False)
    num_calls = int(shim.shim_calls())
    shim.shim_arm(b"/nowhere", ctypes.c_long(-2), 0)
    content = (job.folder / "out.jsonl").read_bytes()
    wrong: list[str] = []
    points = range(int(first), num_calls, int(step))
    for at in points:
        here = folder / "killed"
        shutil.copytree(folder / "fresh", here)
        job = job_in(here, kind, job.file.source.model_dump(exclude_unset=True))
        status = child(job, shim, at, int(error))
        expected = (TYPED << 8, 0) if int(error) else (9,)
        try:
            outcome = run(job, resume=True)
            complaint = compared(job, content, wanted, outcome)
        except Exception as fault:
            complaint = repr(fault)
        if status not in expected:
            complaint = f"ended with {status}; {complaint}"
        if complaint:
            wrong.append(f"call {at}: {complaint}")
        shutil.rmtree(here)
    print(json.dumps({"calls": num_calls, "tried": len(points), "wrong": wrong}))


def compared(job: Job, content: bytes, wanted: Outcome, found: Outcome) -> str:
    """What came twice from a queue is a duplicate more; nothing else may differ."""
    if (job.folder / "out.jsonl").read_bytes() != content:
        return "another output"
    books, whole = found.books, wanted.books
    if (books.accepted, books.quarantined) != (whole.accepted, whole.quarantined):
        return f"other books: {books}"
    if job.file.source.kind != "queue" and books.duplicates != whole.duplicates:
        return f"other duplicates: {books}"
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
