"""Memory does not grow with the number of requests: short ones of every kind, some of them left
half-read, with a tenant each. `make soak` runs 10,000; here 500 show that the test works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of the process"),
]

# The engine remembers the last 2,064 reports and 3 × 1,024 absent tenants; then it is full.
FULL_AFTER = 4_000
MAX_GROWTH_BYTES = 1 << 20


def run(model: Path, num_requests: int) -> list[dict[str, int]]:
    script = Path(__file__).with_name("soak.py")
    done = subprocess.run(
        [sys.executable, str(script), str(model), str(num_requests), "1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, int]] = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        held = (line["num_used_blocks"], line["num_running"], line["num_waiting"])
        assert held == (0, 0, 0), "something is left of requests that have ended"
    assert lines[-1]["num_evicted"] > 0
    assert lines[-1]["num_hits"] > 0
    assert lines[-1]["num_preempted"] > 0
    return lines


def test_500_requests_leave_no_block_and_little_memory(micro_folder: Path) -> None:
    lines = run(micro_folder, 500)
    assert lines[-1]["rss_bytes"] - lines[1]["rss_bytes"] < 2 * MAX_GROWTH_BYTES


@pytest.mark.slow
@pytest.mark.soak
def test_memory_is_flat_over_10_000_requests(micro_folder: Path) -> None:
    lines = run(micro_folder, 10_000)
    full = next(line for line in lines if line["num_requests"] >= FULL_AFTER)
    grown = lines[-1]["rss_bytes"] - full["rss_bytes"]
    assert grown < MAX_GROWTH_BYTES, f"{grown} bytes in {10_000 - FULL_AFTER} requests"
