"""Parts on a real Ray: two workers, the command, workers and drivers that are killed.

Owns: the tests of `cluster/offline/pool.py` and of `data run --ray`. May not know: how a source is
cut. Read next: `test_running.py`, for all that needs no Ray.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.cluster.offline.running import HowOffline, Pool, run_in_parts
from firsthand.cluster.session import begin_own
from firsthand.data.job import Job, read_job
from firsthand.data.running import How, run_job
from firsthand.errors import SourceRefused
from firsthand.server.job_engine import engine_of
from tests.cluster.offline.comparing import differs, job_with, told
from tests.data.jobs import ask, lines

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's, of its own options
]

ROOT = Path(__file__).resolve().parents[3]
JOB = """
source = {path = "in.jsonl"}
checkpoint_records = 20
"""
ENGINE = """
[engine]
model = "micro"
options = { max_tokens = 4, temperature = 0 }
"""
OWN = """
import os, time
def slow(values):
    with open("pids", "a") as out:
        out.write(f"{os.getpid()}\\n")
    time.sleep(0.01)
    if values["text"] == "kills":
        os._exit(1)
    return values
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two workers of one core."""
    session = begin_own(tmp_path_factory.mktemp("home"), 2)
    from firsthand.cluster.offline.pool import Workers, ray_pool

    yield ray_pool(Workers(2, 1))
    session.end()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not waited for the processes that it ended
        gc.collect()


def job_of(folder: Path, name: str, text: str) -> Job:
    """Two jobs that differ in nothing but the name of what they write."""
    path = folder / f"{name}.toml"
    path.write_text(f'{JOB}sink = {{path = "{name}.jsonl"}}\n{text}')
    return read_job(path)


def alone(folder: Path, text: str) -> Job:
    job = job_of(folder, "alone", text)
    run_job(job, engine_of(job, None, 1), How())
    return job


@pytest.mark.native
def test_two_workers_give_what_one_process_gives(tmp_path: Path, pool: Pool) -> None:
    """G26, S77, S79: outputs, quarantine, keys and books, byte for byte."""
    records = [ask(number if number % 9 else number // 2) for number in range(40)]
    (tmp_path / "in.jsonl").write_bytes(lines(*records, {"request_id": "x"}, *records[:5]))
    (tmp_path / "micro").mkdir()
    write_micro_model(tmp_path / "micro")
    one, other = alone(tmp_path, ENGINE), job_of(tmp_path, "parts", ENGINE)
    found = run_in_parts(other, HowOffline(2, 5), pool)
    assert differs(one, other) == ""
    books = found.books
    assert books.read == 46 and books.quarantined == 1 and found.ended
    assert books.accepted + books.duplicates == 45 and books.duplicates > 5


def test_s_82_a_type_of_arrow_runs_no_code(tmp_path: Path, pool: Pool) -> None:
    """Ray Data is loaded here, and with it the types of Arrow that it has registered."""
    canary = tmp_path / "canary"
    evil = pickle.dumps(_Touches(str(canary)))
    names = ("ray.data.arrow_tensor_v2", "ray.data.arrow_pickled_object", "arrow.py_extension_type")
    for name in names:
        said = {"ARROW:extension:name": name, "ARROW:extension:metadata": evil}
        field = pa.field("text", pa.list_(pa.int64()), metadata=said)
        table = pa.Table.from_arrays([pa.array([[1]])], schema=pa.schema([field]))
        pq.write_table(table, tmp_path / "in.parquet")
        job = job_with(tmp_path, "out.jsonl", {"source": {"path": "in.parquet"}})
        with pytest.raises(SourceRefused):
            run_in_parts(job, HowOffline(2), pool)
        assert not canary.exists()


class _Touches:
    """What makes a file of this name, when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (f"touch {self._path}",)


SLOW = '[[transform]]\nuse = "mine.py:slow"\n'


def prepared(folder: Path, num: int, *more: dict[str, Any]) -> tuple[Job, Job]:
    (folder / "mine.py").write_text(OWN)
    (folder / "in.jsonl").write_bytes(lines(*map(ask, range(num)), *more, *map(ask, range(9))))
    return alone(folder, SLOW), job_of(folder, "parts", SLOW)


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "pids").unlink(missing_ok=True)
    command = [sys.executable, "-m", "firsthand.cli.entry", "data", "run", "parts.toml"]
    options = ["--ray", "--cpus", "1", "--parts", "6", "--resume"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command + options, cwd=folder, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def worker_of(folder: Path) -> int:
    """One that works now."""
    until_s = time.monotonic() + 600
    while time.monotonic() < until_s:
        with_pids = folder / "pids"
        if with_pids.exists() and len(found := with_pids.read_text().split()) > 50:
            return int(found[-1])
        time.sleep(0.02)
    raise AssertionError("no worker has begun")


@pytest.mark.soak
def test_a_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = prepared(tmp_path, 1500)
    with started(tmp_path) as process:
        for _ in range(2):
            os.kill(worker_of(tmp_path), signal.SIGKILL)
            (tmp_path / "pids").unlink()
        assert process.wait(900) == 0
    assert differs(one, other) == ""


@pytest.mark.soak
def test_the_driver_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = prepared(tmp_path, 1500)
    for _ in range(2):
        with started(tmp_path):
            worker_of(tmp_path)
    with started(tmp_path) as process:
        assert process.wait(900) == 0
    assert differs(one, other) == ""


@pytest.mark.soak
def test_d_5_a_record_that_kills_its_worker_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are as if it had not been; it is in quarantine, as poison."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    kills = ask(1000, "kills")
    (tmp_path / "in.jsonl").write_bytes(lines(*map(ask, range(300)), kills, *map(ask, range(400))))
    other = job_of(tmp_path, "parts", SLOW)
    with started(tmp_path) as process:
        assert process.wait(900) == 0
    found = told(other)
    assert len(found["outputs"]) == 400
    (held,) = found["quarantine"]
    assert (held[7], held[8]) == ("run", "poison") and b"kills" in held[11]
