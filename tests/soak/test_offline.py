"""Jobs in parts on Ray: their pace with one worker and with two, beside one process.

Owns: the figures of docs/data.md on many machines. May not know: what a part is made of.
Read next: `../cluster/offline/on_ray.py`, for workers and drivers that are killed.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.cluster.offline.running import HowOffline, Pool, run_in_parts
from firsthand.cluster.session import begin_own
from firsthand.data.job import Job
from firsthand.data.running import How, run_job
from firsthand.server.job_engine import engine_of
from tests.cluster.offline.comparing import differs, job_with
from tests.data.jobs import ask, lines
from tests.soak.conftest import Figure

pytestmark = [
    pytest.mark.soak,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ENGINE = {"model": "micro", "options": {"max_tokens": 32, "temperature": 0}, "prompt": "text"}


@pytest.mark.native
@pytest.mark.parametrize(("kind", "num"), [("records", 50_000), ("engine", 1_000)])
def test_one_worker_and_two(tmp_path: Path, figure: Figure, kind: str, num: int) -> None:
    """On two cores a second worker has what is left of the second one."""
    (tmp_path / "in.jsonl").write_bytes(lines(*map(ask, range(num))))
    (tmp_path / "micro").mkdir()
    write_micro_model(tmp_path / "micro")
    table = {"engine": ENGINE} if kind == "engine" else {}
    one = job_with(tmp_path, "alone.jsonl", table)
    begun_s = time.perf_counter()
    run_job(one, engine_of(one, None, 1), How())
    figure(f"{kind}: one process", num / (time.perf_counter() - begun_s), "records/s")
    session = begin_own(tmp_path, 2)
    from firsthand.cluster.offline.pool import Workers, ray_pool

    for num_workers in (1, 2):
        job = job_with(tmp_path, f"parts{num_workers}.jsonl", table)
        took_s, join_s = timed(job, num_workers, ray_pool(Workers(num_workers, 1)))
        figure(f"{kind}: {num_workers} workers, from start to end", num / took_s, "records/s")
        figure(f"{kind}: {num_workers} workers, joining", join_s, "s")
        assert differs(one, job) == ""
    session.end()


def timed(job: Job, num_workers: int, pool: Pool) -> tuple[float, float]:
    """Seconds from start to end, and those after the last part."""
    ends_s: list[float] = []
    begun_s = time.perf_counter()
    how = HowOffline(num_workers, 4, tell=lambda _: ends_s.append(time.perf_counter()))
    run_in_parts(job, how, pool)
    now_s = time.perf_counter()
    return now_s - begun_s, now_s - ends_s[-1]
