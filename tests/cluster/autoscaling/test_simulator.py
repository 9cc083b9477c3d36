"""VERS-5, S110, S111: recorded and feared loads, ours beside a policy without patience."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench.book import measured, played
from firsthand.cluster.autoscaling.limits import Limits
from firsthand.cluster.autoscaling.loads import SHAPES, drawn, recorded
from firsthand.cluster.autoscaling.simulator import (
    Outcome,
    Service,
    compared,
    our_policy,
    service_of,
    simulate,
)
from firsthand.errors import InvalidRequest
from tests.loadtest.test_curve import curve

TRACES = Path(__file__).parent / "traces"
RECORDED = sorted(path.stem for path in TRACES.glob("*.json"))
SERVICE = Service(rate=2.0, idle_s=1.0, busy_s=4.0, ttft_ms=200, start_s=30)
LIMITS = Limits(max_replicas=12, ongoing_out=6.4, queue_out=6.4, p99_ttft_ms=500)
TICK_S = 5.0
REACTS_S = 15.0
SURPRISING = ("burst",)  # it comes back after two look backs: once that is a surprise


def arrivals(name: str) -> list[float]:
    if name in SHAPES:
        return drawn(name, 12.0, TICK_S)
    trace = json.loads((TRACES / f"{name}.json").read_text())
    assert trace["seconds"] == TICK_S
    return [float(one) for one in trace["requests"]]


def both(name: str) -> tuple[Outcome, Outcome]:
    found = compared(arrivals(name), SERVICE, LIMITS, TICK_S)
    return found["ours"], found["naive"]


@pytest.mark.parametrize("name", [*RECORDED, *(name for name in SHAPES if name != "day")])
def test_no_load_makes_it_flap_and_it_reacts_in_time(name: str) -> None:
    ours, naive = both(name)
    assert ours.flaps <= (1 if name in SURPRISING else 0)
    assert naive.flaps >= 20
    assert ours.reaction_s <= REACTS_S
    assert max(one.target for one in ours.moments) <= LIMITS.max_replicas


@pytest.mark.slow
def test_a_day_follows_the_load_without_flapping() -> None:
    ours, naive = both("day")
    assert ours.flaps == 0
    assert naive.flaps > 500
    assert min(one.target for one in ours.moments) <= 3
    assert ours.machine_hours < 24 * max(one.target for one in ours.moments) * 0.8


def test_vers_5_constant_load_is_reached_and_kept() -> None:
    """What needs three, from one, for ten minutes."""
    load = drawn("constant", 4.5, TICK_S)[:120]
    found = simulate(our_policy(LIMITS), load, SERVICE, LIMITS)
    settled = [one for one in found.moments if one.at_s > 180]
    assert {one.target for one in settled} in ({3}, {4})
    assert found.to_dict()["scale_ins"] == 0


def test_after_a_step_all_that_came_leave_again_one_by_one() -> None:
    ours, _ = both("step")
    assert max(one.target for one in ours.moments) >= 6
    low = [one for one in ours.moments if one.at_s > 8900]
    assert low[-1].target < max(one.target for one in ours.moments)
    falls = [(now.at_s, before - now.target) for now, before in ours.changes if now.target < before]
    assert all(fall == 1 for _, fall in falls)
    assert all(b - a >= LIMITS.in_cooldown_s for (a, _), (b, _) in pairwise(falls))


def test_vers_7_a_minute_without_readings_changes_nothing() -> None:
    load = drawn("constant", 5.0, TICK_S)
    seen = simulate(our_policy(LIMITS), load, SERVICE, LIMITS)
    blind = simulate(our_policy(LIMITS), load, SERVICE, LIMITS, silent=range(400, 412))
    during = {one.target for one in blind.moments[400:412]}
    assert during == {blind.moments[399].target}
    assert seen.moments[399] == blind.moments[399]


def test_two_runs_are_the_same() -> None:
    assert both("burst") == both("burst")
    assert drawn("burst", 12.0, TICK_S, seed=1) != drawn("burst", 12.0, TICK_S)


def test_a_measured_knee_is_a_service() -> None:
    found = service_of(curve(), 20.0)
    assert found.rate == curve().knee.low
    assert 0 < found.idle_s <= found.busy_s
    assert found.start_s == 20


def test_a_recorded_load_is_counted_by_ticks() -> None:
    assert recorded([(0, 1), (4.9, 1), (5, 2), (16, 1)], 5.0) == [2, 2, 0, 1]
    with pytest.raises(InvalidRequest, match="lasts longer"):
        recorded([(1e9, 1)], 5.0)


def test_what_never_reports_keeps_what_there_is() -> None:
    limits = replace(LIMITS, min_replicas=2)
    found = simulate(
        our_policy(limits), [1.0] * 500, SERVICE, limits, silent=range(500), replicas=5
    )
    assert {one.target for one in found.moments} == {5}


@pytest.mark.parametrize("name", [*RECORDED, "step", "wave"])
def test_the_figure_of_the_pages_is_what_this_policy_does(name: str) -> None:
    assert played(arrivals(name)) == measured().found("autoscale")[name]
