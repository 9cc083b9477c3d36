"""Replicas under a load, as arithmetic: what a policy would have done.

Owns: the simulated service, its readings, the outcome of a run.
May not know: any policy but as a function; where a load comes from.
Read next: `policy.py`; `loads.py`.

Requests are a fluid: each second replicas that are ready answer what waits, at most as much as each
can, and what is under way follows from how long an answer takes. So a run is the same each time,
and an hour takes milliseconds. Not simulated: which replica waits for which request, full queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from firsthand.cluster.autoscaling.limits import Limits
from firsthand.cluster.autoscaling.policy import State, decide
from firsthand.cluster.autoscaling.readings import Readings
from firsthand.loadtest.curve import FIT, Curve
from firsthand.values import dataclass

Policy = Callable[[Readings, float], tuple[int, str]]  # at a time: how many, and why
FLAP_S = 600.0
START_S = 30.0
READINGS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Service:
    """One replica: requests per second at its knee, seconds of an answer when it is alone and at
    the knee, ms of a first token; seconds until a new one is ready."""

    rate: float
    idle_s: float
    busy_s: float
    ttft_ms: float = 0.0
    start_s: float = START_S

    def seconds_at(self, rate: float) -> float:
        return self.idle_s + (self.busy_s - self.idle_s) * min(1.0, rate / self.rate)


@dataclass(frozen=True, slots=True)
class Moment:
    """At the end of a tick. `target`: with those that are starting."""

    at_s: float
    arrived: float
    waiting: float
    running: float
    ready: int
    target: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """`flaps`: changes that take back the one before within `FLAP_S`. `reaction_s`: the longest
    time from a demand beyond as many as there are to the next decision for more, where there may be
    more and none is starting. `machine_hours` are those of all replicas, from start to end."""

    moments: tuple[Moment, ...]
    machine_hours: float
    reaction_s: float

    @property
    def changes(self) -> list[tuple[Moment, int]]:
        """With the number of replicas before."""
        found = pairwise(self.moments)
        return [(now, before.target) for before, now in found if now.target != before.target]

    @property
    def flaps(self) -> int:
        return sum(
            now.at_s - before.at_s < FLAP_S and (now.target > was) != (before.target > once)
            for (before, once), (now, was) in pairwise(self.changes)
        )

    def to_dict(self) -> dict[str, Any]:
        changes = self.changes
        return {
            "changes": len(changes),
            "scale_outs": sum(now.target > before for now, before in changes),
            "scale_ins": sum(now.target < before for now, before in changes),
            "flaps": self.flaps,
            "most_replicas": max(one.target for one in self.moments),
            "machine_hours": self.machine_hours,
            "longest_queue": max(one.waiting for one in self.moments),
            "reaction_s": self.reaction_s,
        }


def service_of(curve: Curve, start_s: float) -> Service:
    """As it was measured; the lower end of the knee's interval counts."""
    rate, least = curve.knee.low, curve.of(FIT)[0]
    return Service(
        rate,
        least.mean_e2el_ms / 1e3,
        max(least.mean_e2el_ms, curve.at("mean_e2el_ms", rate)) / 1e3,
        curve.at("p99_ttft_ms", rate),
        start_s,
    )


def our_policy(limits: Limits) -> Policy:
    """With its memory."""
    state: State | None = None

    def ask(readings: Readings, now: float) -> tuple[int, str]:
        nonlocal state
        decision = decide(limits, state, readings, now)
        state = decision.state
        return decision.replicas, decision.reason

    return ask


def naive_policy(limits: Limits) -> Policy:
    """As many as the requests of this moment keep busy, for comparison."""

    def ask(readings: Readings, _: float) -> tuple[int, str]:
        ongoing = readings.running + readings.waiting
        wanted = -(-ongoing // limits.ongoing_out)
        return int(min(max(wanted, limits.min_replicas), limits.max_replicas)), ""

    return ask


def simulate(
    policy: Policy,
    arrivals: Sequence[float],
    service: Service,
    limits: Limits,
    *,
    tick_s: float = READINGS_EVERY_S,
    replicas: int | None = None,
    silent: range = range(0),
) -> Outcome:
    """`arrivals`: requests of each tick, at whose end the policy is asked. `replicas`: at the
    beginning, by default the least. `silent`: ticks in which nobody reports."""
    ready, starting = replicas or limits.min_replicas, list[float]()
    waiting, busy_s, reaction_s = 0.0, 0.0, 0.0
    late_since: float | None = None
    moments = []
    for tick, arrived in enumerate(arrivals):
        now = (tick + 1) * tick_s
        ready += sum(at_s <= now for at_s in starting)
        starting = [at_s for at_s in starting if at_s > now]
        able = ready * service.rate * tick_s
        answered = min(waiting + arrived, able)
        waiting += arrived - answered
        each = answered / tick_s / ready
        running = each * ready * service.seconds_at(each)
        target = ready + len(starting)
        busy_s += target * tick_s
        heard = tick not in silent
        readings = Readings(
            replicas=target,
            reported=ready if heard else 0,
            silent=0 if heard else ready,
            running=running if heard else 0.0,
            waiting=waiting if heard else 0.0,
            p99_ttft_ms=service.ttft_ms + waiting / able * tick_s * 1e3 if heard else None,
        )
        wanted, reason = policy(readings, now)
        over = running + waiting > limits.ongoing_out * target
        if over and target < limits.max_replicas and not starting:
            late_since = now - tick_s if late_since is None else late_since
        if wanted > target and late_since is not None:
            reaction_s = max(reaction_s, now - late_since)
        if wanted != target or not over:
            late_since = None
        ready, starting = _changed(ready, starting, wanted, now + service.start_s)
        moments.append(Moment(now, arrived, waiting, running, ready, wanted, reason))
    return Outcome(tuple(moments), busy_s / 3600, reaction_s)


def _changed(
    ready: int, starting: list[float], wanted: int, ready_at_s: float
) -> tuple[int, list[float]]:
    """Those that are not ready yet leave first. Who leaves while it works is drained: its work is
    done by the others here, which is as much."""
    more = wanted - ready - len(starting)
    if more >= 0:
        return ready, starting + [ready_at_s] * more
    kept = starting[: max(0, wanted - ready)]
    return min(ready, wanted), kept


def compared(
    arrivals: Sequence[float], service: Service, limits: Limits, tick_s: float
) -> dict[str, Outcome]:
    """Ours beside the naive one."""
    return {
        "ours": simulate(our_policy(limits), arrivals, service, limits, tick_s=tick_s),
        "naive": simulate(naive_policy(limits), arrivals, service, limits, tick_s=tick_s),
    }


def table_of(outcome: Outcome) -> list[dict[str, Any]]:
    """The changes, each with what led to it."""
    return [asdict(now) | {"before": before} for now, before in outcome.changes]
