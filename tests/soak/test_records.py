"""A file far larger than memory's limit through a whole run: 256 MiB at most, and no slope.

Owns: the memory of `data run`, small in `make test` and over a gigabyte in `make soak`.
May not know: how a run works. Read next: `tests/data/test_runs.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from tests.soak.conftest import Figure

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of processes"),
]
FULL = pytest.param(1 << 30, marks=[pytest.mark.soak, pytest.mark.slow], id="full")
SOURCE = Path(__file__).resolve().parents[2] / "src"
LIMIT_MIB = 256
JOB = """
[source]
path = "in.jsonl"
[[transform]]
use = "clean"
fields = ["text"]
[sink]
path = "out.jsonl"
keep = ["request_id"]
"""


@pytest.mark.parametrize("num_bytes", [pytest.param(8 << 20, id="small"), FULL])
def test_d_11_memory_has_no_slope(tmp_path: Path, num_bytes: int, figure: Figure) -> None:
    text, number = "word " * 200, 0
    with (tmp_path / "in.jsonl").open("w") as stream:
        while stream.tell() < num_bytes:
            stream.writelines(
                json.dumps({"request_id": f"r{number + i}", "text": text}) + "\n"
                for i in range(1000)
            )
            number += 1000
    (tmp_path / "job.toml").write_text(JOB)
    command = [sys.executable, "-m", "firsthand.cli.entry", "data", "run", "job.toml"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    begun_s, seen = time.perf_counter(), list[int]()
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        seen.append(_resident_kib(process.pid))
        time.sleep(0.05)
    assert process.returncode == 0
    seconds = time.perf_counter() - begun_s
    seen = [one for one in seen if one][len(seen) // 4 :]
    half = len(seen) // 2
    grown = median(seen[half:]) - median(seen[:half])
    figure("D-11: a run over a file", num_bytes / 2**20, "MiB")
    figure("D-11: records read, checked and written", number / seconds, "per second")
    figure("D-11: peak memory", max(seen) / 1024, "MiB", f"at most {LIMIT_MIB}")
    figure("D-11: later half against earlier", grown / 1024, "MiB", "at most 24")
    assert max(seen) < LIMIT_MIB * 1024 and grown < 24 * 1024


def _resident_kib(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
