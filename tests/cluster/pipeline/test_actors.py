"""Stages in workers of Ray, in a process of its own: `on_ray.py` has the tests; and the command.

Owns: how they are run. May not know: what a pipeline does. Read next: `on_ray.py`.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from firsthand.cli.main import run_command

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 300.0
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )


@needs_ray
@pytest.mark.native
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("which", ["not soak", pytest.param("soak", marks=pytest.mark.soak)])
def test_stages_on_ray(which: str) -> None:
    """S107, S108: tokens and log-probabilities are those of one process; in the long run with
    three stages, too, and with one that is killed."""
    on_ray = str(Path(__file__).with_name("on_ray.py"))
    done = ran("-m", "pytest", "-W", "ignore", "-m", which, on_ray)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_ray
@pytest.mark.native
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.soak
def test_the_command_shows_stages_bubbles_and_hops(six_layers: Path, tmp_path: Path) -> None:
    """S109: bytes and ms per hop are told, and stand in the trace."""
    trace = tmp_path / "steps.json"
    arguments = ["cluster", "run", str(six_layers), "one prompt", "another", "--stages", "2"]
    arguments += ["--split", "4,2", "--micro-batches", "2", "--max-tokens", "3", "--ignore-end"]
    arguments += ["--max-context", "160", "--seed", "3", "--compare", "--trace-out", str(trace)]
    done = ran("-m", "firsthand.cli.main", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["is_equal"] is True
    assert said["split"] == [4, 2]
    assert [len(one["token_ids"]) for one in said["answers"]] == [3, 3]
    facts = said["pipeline"]
    assert facts["num_hops"] == facts["num_parts"] > facts["num_steps"] > 0
    assert facts["mean_hop_bytes"] > 256
    assert 0.0 < facts["bubble_share"] < 1.0
    spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {event["tid"] for event in spans} == {1, 2}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (["--stages", "0"], "stages"),
        (["--split", "9,9,9"], "split"),
        (["--micro-batches", "0"], "micro_batches"),
        (["--balance", "all"], "balance"),
        (["--trace-out", "/no/such/folder/x"], "trace_out"),
        (["--plot-out", "x.txt"], "plot_out"),
    ],
)
def test_the_command_refuses_by_name(
    six_layers: Path, capsys: pytest.CaptureFixture[str], more: list[str], field: str
) -> None:
    """Before Ray is started."""
    assert run_command(["cluster", "run", str(six_layers), "abc", *more]) == 2
    assert f"error: {field}: " in capsys.readouterr().err
