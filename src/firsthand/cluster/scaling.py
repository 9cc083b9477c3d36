"""The autoscaling policy as Ray Serve asks it.

Owns: what Ray knows as our readings, where the memory lies between two questions, what is logged.
May not know: how a decision is made (`autoscaling/`), what a replica is.
Read next: `autoscaling/policy.py`.

Ray's controller asks ten times a second, and obeys. It drains who leaves: no new request, the time
of `graceful_shutdown_timeout_s` for what it has. Ray's own delays are off, as the policy has
cool-downs; its own averages are not used either, since they read what is missing as 0.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from firsthand.cluster.autoscaling.limits import Limits
from firsthand.cluster.autoscaling.policy import State, decide
from firsthand.cluster.autoscaling.readings import NAMES, PREFIX, Report, readings_of, report_of

MEMORY = "firsthand"
REPORT_EVERY_S = 2.0  # of replicas and doors, to Ray's controller; its default is ten
LOOK_BACK_S = 5.0  # Ray's, who takes a reading five times in it, and sends what it has less often


def autoscaling_config(limits: Limits) -> AutoscalingConfig:
    """For a deployment whose class has `record_autoscaling_stats`, which returns `figures`."""
    policy = AutoscalingPolicy(
        policy_function=f"{__name__}:{ReplicaScaling.__name__}", policy_kwargs=asdict(limits)
    )
    with warnings.catch_warnings():
        # Ray warns that variables will replace the interval; 2.60 reads none of them yet.
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            min_replicas=limits.min_replicas,
            initial_replicas=limits.min_replicas,
            max_replicas=limits.max_replicas,
            target_ongoing_requests=limits.ongoing_out,
            metrics_interval_s=REPORT_EVERY_S,
            look_back_period_s=LOOK_BACK_S,
            upscale_delay_s=0,
            downscale_delay_s=0,
            policy=policy,
        )


class ReplicaScaling:
    """One per deployment, made by Ray's controller from the limits."""

    def __init__(self, **limits: Any) -> None:
        self._limits = Limits(**limits)
        self._log = logging.getLogger("ray.serve")
        self._was_blind = False

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        now: float = context.current_time
        readings = readings_of(
            context.target_num_replicas,
            _reports(context.running_replicas, context.raw_metrics or {}),
            now,
            self._limits.stale_s,
            waiting_before=context.total_queued_requests or 0.0,
        )
        state: State | None = context.policy_state.get(MEMORY)
        decision = decide(self._limits, state, readings, now)
        if decision.replicas != readings.replicas:
            change = f"{readings.replicas} to {decision.replicas} replicas"
            self._log.info("%s: %s: %s", context.deployment_name, change, decision.reason)
        if decision.blind and not self._was_blind:
            text = "%s: %d of %d replicas are not heard of, so none is taken away: %s"
            silent, name = readings.silent, context.deployment_name
            self._log.warning(text, name, silent, readings.replicas, decision.reason)
        self._was_blind = decision.blind
        return decision.replicas, {MEMORY: decision.state}


def _reports(
    replicas: list[Any], series: Mapping[str, Mapping[Any, list[Any]]]
) -> list[Report | None]:
    """The newest one of each replica that runs."""
    found = []
    for replica in replicas:
        points = [
            (name, series[name][replica][-1])
            for name in (PREFIX + one for one in NAMES)
            if series.get(name, {}).get(replica)
        ]
        oldest = min((point.timestamp for _, point in points), default=0.0)
        found.append(report_of(oldest, {name: point.value for name, point in points}))
    return found
