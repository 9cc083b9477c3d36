"""What tests of parts share: a job as one process does it and in parts, and all that may differ.

Owns: `alone`, `in_parts`, `told`. May not know: any test. Read next: `test_running.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from firsthand.cluster.offline.part import Setting, Task, tried
from firsthand.cluster.offline.running import Done, HowOffline, Pool, run_in_parts
from firsthand.data.engines import Engine
from firsthand.data.job import Job, job_of
from firsthand.data.ledger import read_ledger
from firsthand.data.running import How, Outcome, run_job

OF_A_RUN = ("begun", "told", "joined", "starts", "sink_part", "sink_name", "position", "alone")
Opens = Callable[[], Engine] | None


def job_with(folder: Path, name: str, table: dict[str, Any]) -> Job:
    """The job over what is in `folder`, with outputs of its own."""
    return job_of({"source": {"path": "in.jsonl"}, "sink": {"path": name}, **table}, folder)


def alone(folder: Path, table: dict[str, Any], opens: Opens = None) -> Job:
    job = job_with(folder, "alone.jsonl", table)
    run_job(job, opens, How())
    return job


def in_parts(
    folder: Path, table: dict[str, Any], num_parts: int, opens: Opens = None, resume: bool = False
) -> tuple[Job, Outcome]:
    job = job_with(folder, "parts.jsonl", table)
    return job, run_in_parts(job, HowOffline(2, num_parts, resume=resume), pool(opens))


def pool(opens: Opens = None) -> Pool:
    """The parts one after the other, in this process, the last one first."""

    def run(setting: Setting, tasks: Sequence[Task]) -> Iterator[Done]:
        for task in reversed(tasks):
            yield task, tried(setting, task, opens)

    return run


def told(job: Job) -> dict[str, Any]:
    """All that a run has left behind, but when it ran and under which name."""
    with closing(read_ledger(job.ledger)) as ledger:
        rows = {
            table: ledger.connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("outputs", "quarantine", "seen")
        }
        rows["position"] = [ledger.position]
        facts = ledger.connection.execute("SELECT * FROM facts").fetchall()
    lines = (job.folder / str(job.file.sink.path)).read_bytes().splitlines()
    return {**rows, "facts": {k: v for k, v in facts if k not in OF_A_RUN}, "lines": lines}


def differs(one: Job, other: Job) -> str:
    """The first thing in which two runs differ."""
    left, right = told(one), told(other)
    for name, value in left.items():
        if value != right[name]:
            return f"{name}: {_first(value, right[name])}"
    return ""


def _first(value: Any, other: Any) -> str:
    if isinstance(value, dict):
        value, other = sorted(value.items()), sorted(other.items())
    pairs = [(a, b) for a, b in zip(value, other, strict=False) if a != b]
    return f"{len(value)} and {len(other)}; {pairs[:1]}"
