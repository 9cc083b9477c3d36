"""A deployment that is scaled by our policy, on a Ray of its own; prints what became of it.

Owns: the deployment, its load. May not know: the policy. Read next: `test_scaling.py`, its caller.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import serve

from firsthand.cluster.autoscaling.limits import Limits
from firsthand.cluster.autoscaling.readings import figures
from firsthand.cluster.scaling import autoscaling_config

LIMITS = Limits(
    max_replicas=3,
    ongoing_out=4,
    queue_out=4,
    confirm_s=2,
    out_cooldown_s=1,
    start_s=5,
    in_cooldown_s=5,
    empty_s=3,
    look_back_s=6,
)
PATIENCE_S = 120.0


class Tiny:
    """It answers slowly, and says how busy it is; a file says how many wait."""

    def __init__(self, told: str) -> None:
        self._told = Path(told)
        self._running = 0

    async def __call__(self, seconds: float) -> float:
        self._running += 1
        await asyncio.sleep(seconds)
        self._running -= 1
        return seconds

    async def record_autoscaling_stats(self) -> dict[str, float]:
        text = self._told.read_text()
        return {} if text == "silent" else figures(running=self._running, waiting=float(text))


def replicas() -> dict[str, int]:
    """By their state."""
    found: dict[str, int] = serve.status().applications["tiny"].deployments["engine"].replica_states
    return found


def running() -> int:
    return replicas().get("RUNNING", 0)


def waited_for(what: Callable[[], bool]) -> float:
    begun_s = time.monotonic()
    while not what():
        if time.monotonic() - begun_s > PATIENCE_S:
            raise TimeoutError
        time.sleep(0.2)
    return time.monotonic() - begun_s


def play(told: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"at_first": running()}
    handle = serve.get_app_handle("tiny")
    told.write_text("50")
    found["decided_after_s"] = waited_for(lambda: sum(replicas().values()) >= 2)
    found["all_after_s"] = waited_for(lambda: running() == 3)
    told.write_text("silent")
    time.sleep(LIMITS.in_cooldown_s + LIMITS.look_back_s + 4)
    found["when_silent"] = running()
    told.write_text("0")
    asked = []
    begun_s = time.monotonic()
    while running() > 1 and time.monotonic() - begun_s < PATIENCE_S:
        asked += [handle.remote(0.5) for _ in range(2)]
        time.sleep(0.4)
    found["one_after_s"] = time.monotonic() - begun_s
    found["asked"] = len(asked)
    found["answered"] = sum(one.result(timeout_s=60) == 0.5 for one in asked)
    return found


def main(folder: str) -> None:
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=folder,
        object_store_memory=100 << 20,
    )
    told = Path(folder) / "told"
    told.write_text("0")
    serve.start(proxy_location="Disabled")
    tiny: Any = serve.deployment(
        Tiny,
        name="engine",
        autoscaling_config=autoscaling_config(LIMITS),
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=100,
        graceful_shutdown_timeout_s=60,
    )
    serve.run(tiny.bind(str(told)), name="tiny", route_prefix=None)
    try:
        print(json.dumps(play(told)))
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
