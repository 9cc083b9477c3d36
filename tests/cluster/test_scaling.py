"""The policy asked by Ray Serve's own controller: S110, S111, VERS-7."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firsthand.cluster.autoscaling.readings import figures
from firsthand.config import child_environment

pytest.importorskip("ray")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's, of its own options
    from firsthand.cluster.scaling import MEMORY, ReplicaScaling

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def context(sent: dict[str, dict[str, float]], age_s: float, memory: dict[str, Any]) -> Any:
    """As Ray Serve gives it: series of each replica under each name."""
    series: dict[str, dict[str, list[Any]]] = {}
    for replica, values in sent.items():
        for name, value in values.items():
            points = [
                SimpleNamespace(timestamp=at, value=v) for at, v in ((0, 99), (100 - age_s, value))
            ]
            series.setdefault(name, {})[replica] = points
    return SimpleNamespace(
        current_time=100.0,
        target_num_replicas=len(sent),
        running_replicas=list(sent),
        raw_metrics=series,
        total_queued_requests=0.0,
        policy_state=memory,
        deployment_name="engine",
    )


def test_the_newest_reading_counts_and_what_is_old_or_missing_does_not() -> None:
    policy = ReplicaScaling(confirm_s=0)
    busy = figures(running=16, waiting=20)
    replicas, memory = policy(context({"a": busy, "b": busy}, 1.0, {}))
    assert replicas == 4, "72 are under way"
    assert memory[MEMORY].replicas == 4
    assert ReplicaScaling(confirm_s=0)(context({"a": busy, "b": busy}, 60.0, {}))[0] == 2
    assert ReplicaScaling(confirm_s=0)(context({"a": busy, "b": {}}, 1.0, {}))[0] == 3
    broken = {"firsthand_running": float("nan"), "firsthand_waiting": 500.0}
    assert ReplicaScaling(confirm_s=0)(context({"a": broken}, 1.0, {}))[0] == 1


@pytest.mark.soak
def test_ray_adds_when_something_waits_hears_who_is_silent_and_drains_who_leaves() -> None:
    """VERS-6, VERS-7, in a process of its own: Ray leaves much behind."""
    with tempfile.TemporaryDirectory(prefix="fh") as folder:  # a short path: sockets are in it
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                str(Path(__file__).with_name("scaled_on_ray.py")),
                folder,
            ],
            env=child_environment({"RAY_USAGE_STATS_ENABLED": "0"}),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Ray's beside
    found = json.loads(said)
    assert found["at_first"] == 1
    assert found["when_silent"] == 3, "nobody is taken away unheard"
    assert found["decided_after_s"] < 60.0, "15 on a machine that has nothing else to do"
    assert found["asked"] == found["answered"] > 4
