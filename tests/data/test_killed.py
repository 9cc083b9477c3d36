"""Kill -9 and failing disks at every call that changes a file: nothing is lost, nothing is double.

Owns: D-1, D-2, D-3, D-6. May not know: how a point is killed. Read next: `killing.py`,
`crash_states.py`.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from firsthand.data.ledger import read_ledger
from firsthand.data.running import How, run_job
from tests.data.jobs import ask, job_in, lines, outputs

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KINDS = ("jsonl", "csv", "json", "sql", "queue", "engine")
SOME = 60  # every so manieth call in an ordinary run


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    source = str(HERE / "kill_shim.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), source, "-ldl"], check=True
    )
    return library


def explore(shim: Path, folder: Path, kind: str, error: int, first: int, step: int) -> int:
    """How many points were tried; fails with what went wrong at each."""
    found = preloaded(shim, "tests.data.killing", folder, kind, str(error), str(first), str(step))
    assert found["wrong"] == [] and found["calls"] > 100
    return int(found["tried"])


def preloaded(shim: Path, module: str, folder: Path, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", module, str(shim), str(folder), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_d_1_killed_at_some_calls(shim: Path, fast_folder: Path, kind: str) -> None:
    first = random.randrange(SOME)
    assert explore(shim, fast_folder, kind, 0, first, SOME) >= 4, first


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_d_1_killed_at_every_call(shim: Path, fast_folder: Path, kind: str) -> None:
    assert explore(shim, fast_folder, kind, 0, 0, 1) > 100


@pytest.mark.parametrize("kind", ["jsonl", "engine"])
def test_d_3_some_states_that_a_power_cut_may_leave(
    shim: Path, fast_folder: Path, kind: str
) -> None:
    seed = random.randrange(1000)
    found = preloaded(shim, "tests.data.crash_states", fast_folder, kind, str(seed), "0.02")
    assert found["wrong"] == [], seed


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_d_3_states_after_every_call(shim: Path, fast_folder: Path, kind: str) -> None:
    found = preloaded(shim, "tests.data.crash_states", fast_folder, kind, "1", "1")
    assert found["wrong"] == [] and found["states"] > 300


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_d_2_a_call_fails(shim: Path, fast_folder: Path, error: int) -> None:
    first = random.randrange(SOME)
    assert explore(shim, fast_folder, "jsonl", error, first, SOME) >= 4, first


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["jsonl", "queue"])
def test_d_2_every_call_fails_once(shim: Path, fast_folder: Path, kind: str, error: int) -> None:
    assert explore(shim, fast_folder, kind, error, 0, 1) > 100


def test_the_command_is_killed_whenever(tmp_path: Path) -> None:
    """The real process, at moments that nobody chose; also while it starts."""
    (tmp_path / "whole").mkdir()
    content = lines(*(ask(number, "word " * 40) for number in range(3000)))
    run_job(job_in(tmp_path / "whole", content), None, How())
    (tmp_path / "in.jsonl").write_bytes(content)
    text = 'checkpoint_records = 50\nsource = {path = "in.jsonl"}\nsink = {path = "out.jsonl"}\n'
    (tmp_path / "job.toml").write_text(text)
    command = [sys.executable, "-m", "firsthand.cli.entry", "data", "run", "job.toml", "--resume"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    kills = 0
    for _ in range(100):
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL
        )
        ledger, before = tmp_path / "out.jsonl.ledger", _size(tmp_path / "out.jsonl")
        while kills < 3 and process.poll() is None and ledger.exists():
            if _size(tmp_path / "out.jsonl") > before + 20_000:
                time.sleep(random.random() * 0.01)
                process.kill()
                kills += 1
            time.sleep(0.001)
        if kills < 3 and not ledger.exists():
            while process.poll() is None and not ledger.exists():
                time.sleep(0.001)
            process.kill()
            kills += 1
        if process.wait() == 0:
            break
    assert kills >= 1
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole/out.jsonl").read_bytes()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_who_ends_in_order_has_not_died(tmp_path: Path) -> None:
    """Ctrl-C, and a disk that is full: however often, no record is held for it."""
    (tmp_path / "own.py").write_text(
        "import pathlib\n"
        "def broken(values):\n"
        "    if values['text'] == 'x' and not pathlib.Path(FLAG).exists():\n"
        "        raise KeyboardInterrupt\n"
        "    return values\n".replace("FLAG", repr(str(tmp_path / "mended")))
    )
    records = lines(*(ask(number, "x" if number == 30 else "") for number in range(60)))
    job = job_in(tmp_path, records, transform=[{"use": "own.py:broken"}], checkpoint_records=16)
    for tries in range(6):
        with pytest.raises(KeyboardInterrupt):
            run_job(job, None, How(resume=tries > 0))
    (tmp_path / "mended").touch()
    books = run_job(job, None, How(resume=True)).books
    assert (books.accepted, books.quarantined) == (60, 0)
    assert [one["request_id"] for one in outputs(tmp_path)] == [f"r{n}" for n in range(60)]


def test_deaths_at_other_records_are_no_fault_of_one(tmp_path: Path) -> None:
    """A process that is killed at one record after the other, as whoever kills it likes."""
    (tmp_path / "own.py").write_text(
        "import os, signal\n"
        "def unlucky(values):\n"
        "    if values['request_id'] == os.environ.get('DIE_AT'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return values\n"
    )
    job = job_in(tmp_path, lines(*map(ask, range(12))), transform=[{"use": "own.py:unlucky"}])
    for deaths, number in enumerate((2, 2, 2, 2, 3, 3, 5, 7)):
        process = os.fork()
        if process == 0:
            os.environ["DIE_AT"] = f"r{number}"
            run_job(job, None, How(resume=deaths > 0))
            os._exit(0)
        assert os.waitpid(process, 0)[1] == 9
    books = run_job(job, None, How(resume=True)).books
    assert (books.accepted, books.quarantined) == (12, 0)


def test_poison_that_kills_the_process_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os, signal\n"
        "def deadly(values):\n"
        "    if values['text'] == 'die':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return values\n"
    )
    records = lines(*(ask(number, "die" if number == 30 else "") for number in range(60)))
    table = {"transform": [{"use": "own.py:deadly"}], "checkpoint_records": 16}
    job = job_in(tmp_path, records, **table)
    deaths = 0
    while True:
        process = os.fork()
        if process == 0:
            run_job(job, None, How(resume=deaths > 0))
            os._exit(0)
        if os.waitpid(process, 0)[1] == 0:
            break
        deaths += 1
    assert deaths == 5  # two before it is looked for, and three at it alone
    ledger = read_ledger(job.ledger)
    held = list(ledger.all_held())
    books = ledger.books
    ledger.close()
    assert [(one.position.record, one.stage, one.reason) for one in held] == [(31, "run", "poison")]
    assert (books.read, books.accepted, books.quarantined) == (60, 59, 1)
    assert [one["request_id"] for one in outputs(tmp_path)] == [
        f"r{number}" for number in range(60) if number != 30
    ]
