"""What a job may cost: reading and checking, an engine that is kept busy, coming back.

Owns: the figures of `data check`, `run-batch` and `--resume`. Only `make soak` runs these.
May not know: how a run works. Read next: `test_records.py`, memory; `in_process.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from firsthand.data.batch import BatchForm, batch_job
from firsthand.data.check import Report, check_file
from firsthand.data.contract import find_contract
from firsthand.data.ledger import read_ledger
from firsthand.data.running import How, run_job
from firsthand.data.sources.files import Reading
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import ServiceOptions
from firsthand.server.inside import InsideEngine
from tests.data.jobs import ask, job_in, lines
from tests.soak.conftest import Figure
from tests.soak.in_process import prompt
from tests.soak.test_speed import alone_s, in_process

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.process]
NUM_SHORT = 300_000
NUM_ANSWERS, TOKENS, ROUNDS = 64, 48, 3
NUM_LONG = 1_000_000
ROOT = Path(__file__).resolve().parents[2]


def as_csv(number: int) -> str:
    return f"r{number},a short text of record {number},64\n"


def as_json(number: int) -> str:
    text = f"a short text of record {number}"
    return json.dumps({"request_id": f"r{number}", "text": text, "max_length": 64}) + "\n"


@pytest.mark.parametrize(
    ("name", "line", "head"),
    [("a.csv", as_csv, "request_id,text,max_length\n"), ("a.jsonl", as_json, "")],
)
def test_thirty_thousand_records_a_second_on_one_core(
    tmp_path: Path, name: str, line: Callable[[int], str], head: str, figure: Figure
) -> None:
    (tmp_path / name).write_text(head + "".join(map(line, range(NUM_SHORT))))
    rates = []
    for _ in range(ROUNDS):
        begun_s = time.process_time()
        *_, report = check_file(tmp_path / name, find_contract(None), Reading())
        rates.append(NUM_SHORT / (time.process_time() - begun_s))
        assert isinstance(report, Report) and report.books.accepted == NUM_SHORT
    figure(f"S72: short records of {name[2:]} on one core", median(rates), "per s", "over 30,000")
    assert median(rates) >= 30_000


@pytest.mark.native
@pytest.mark.model
def test_an_offline_job_keeps_the_engine_busy(
    smollm2_path: Path, tmp_path: Path, figure: Figure
) -> None:
    """Beside the same prompts handed to the same engine at once, in turns."""
    shares = []
    engine = InsideEngine(ServiceOptions(smollm2_path, LoadOptions(max_context=2048), name="m"))
    try:
        with in_process(smollm2_path, NUM_ANSWERS, TOKENS) as process:
            for number in range(-1, ROUNDS):
                whole_s = alone_s(process, 2 * number)
                batch_s = answered_s(engine, tmp_path, 2 * number + 1)
                if number >= 0:
                    shares.append(whole_s / batch_s)
    finally:
        engine.close()
    share = median(shares)
    figure("S77: an offline job beside the engine alone", share, "of its pace", "at least 0.95")
    assert share >= 0.95


class Borrowed:
    """An engine that outlives a run."""

    def __init__(self, engine: InsideEngine) -> None:
        self.ask, self.width = engine.ask, engine.width

    def close(self) -> None: ...


def answered_s(engine: InsideEngine, folder: Path, number: int) -> float:
    content = lines(
        *(
            {
                "custom_id": f"r{index}",
                "url": "/v1/completions",
                "body": {
                    "prompt": prompt(number, index),
                    "max_tokens": TOKENS,
                    "ignore_eos": True,
                    "seed": index,
                },
            }
            for index in range(NUM_ANSWERS)
        )
    )
    (folder / f"in{number}.jsonl").write_bytes(content)
    names = (Path(f"in{number}.jsonl"), Path(f"out{number}.jsonl"))
    job = batch_job(*names, {"url": "http://x"}, folder)
    begun_s = time.perf_counter()
    outcome = run_job(job, lambda: Borrowed(engine), How(), BatchForm)
    took_s = time.perf_counter() - begun_s
    assert outcome.books.accepted == NUM_ANSWERS
    return took_s


def test_g_4_a_run_that_was_killed_goes_on_within_five_seconds(
    tmp_path: Path, figure: Figure
) -> None:
    """Of a million records: from the start of the process to its first step."""
    job = job_in(tmp_path, lines(*map(ask, range(NUM_LONG))))
    run_job(job, None, How(limit=NUM_LONG - 50_000))
    text = 'source = {path = "in.jsonl"}\nsink = {path = "out.jsonl"}\ncheckpoint_records = 1000\n'
    (tmp_path / "job.toml").write_text(text)
    before = (tmp_path / "out.jsonl").stat().st_size
    command = [sys.executable, "-m", "firsthand.cli.entry", "data", "run", "job.toml", "--resume"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    begun_s = time.perf_counter()
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    while (tmp_path / "out.jsonl").stat().st_size <= before:
        assert process.poll() is None
        time.sleep(0.005)
    took_s = time.perf_counter() - begun_s
    assert process.wait() == 0
    ledger = read_ledger(job.ledger)
    ledger.check_books(NUM_LONG)
    ledger.close()
    figure("G4: a run over a million records goes on after", took_s, "s", "under 5")
    assert took_s < 5
