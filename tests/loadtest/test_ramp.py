"""S68, S69: the knee of a server that has a known one is found, in virtual time."""

from __future__ import annotations

import random

import pytest

from firsthand.errors import EngineUnavailable
from firsthand.loadtest.fit import knee_of
from firsthand.loadtest.outcomes import Outcome
from firsthand.loadtest.ramp import Climb, step_of
from tests.loadtest.queueing import Virtual

BUDGET_S = 120.0


@pytest.mark.parametrize("places", [1, 4, 32])
@pytest.mark.parametrize(("service_s", "jitter"), [(0.03, 0.0), (0.5, 0.0), (0.03, 0.5)])
def test_s68_a_known_knee_is_found_within_a_tenth(
    places: int, service_s: float, jitter: float
) -> None:
    server = Virtual(places, service_s, jitter)
    if server.knee > 300:
        pytest.skip("many requests, nothing new")
    found = Climb(server.hold, server.clock, BUDGET_S).run()
    assert found.knee is not None
    assert found.knee.rate == pytest.approx(server.knee, rel=0.1)
    assert found.knee.low <= found.knee.rate <= found.knee.high
    assert found.knee.high - found.knee.low < 0.25 * server.knee
    assert server.now_s < 180, "in under three minutes"


def test_each_phase_is_told_before_its_steps() -> None:
    server, said = Virtual(4, 0.1), list[str]()
    found = Climb(
        server.hold, server.clock, BUDGET_S, lambda step: said.append("step"), begins=said.append
    ).run()
    assert found.knee is not None
    phases = [one for one in said if one != "step"]
    assert [one.rpartition(" ")[2] for one in phases] == ["behind", "up", "down", "knee"]
    assert said[0] == phases[0]
    assert said.count("step") == len(found.steps)


def test_what_was_held_back_and_came_at_once_is_no_rate() -> None:
    late = [Outcome(at / 4, at / 4, 3.0 + at / 100, (3.0,), 8, 4) for at in range(8)]
    assert step_of(late, 4.0, 2.0).request_throughput == 4.0


def test_a_server_that_refuses_has_its_knee_too() -> None:
    server = Virtual(4, 0.1, max_waiting=8)
    found = Climb(server.hold, server.clock, 60).run()
    assert found.knee is not None
    assert found.knee.rate == pytest.approx(server.knee, rel=0.1)
    assert any(step.failed for step in found.steps)


def test_no_knee_within_the_rates_that_are_allowed() -> None:
    server = Virtual(64, 0.1)
    found = Climb(server.hold, server.clock, 60, max_rate=100).run()
    assert found.knee is None
    assert "100 requests" in found.why
    assert max(step.rate for step in found.steps) == 100


def test_no_step_goes_beyond_the_rate_that_was_allowed() -> None:
    """Nor the steps around what the server seems to be able to."""
    server = Virtual(4, 0.1)
    found = Climb(server.hold, server.clock, BUDGET_S, max_rate=52).run()
    assert max(step.rate for step in found.steps) == 52
    assert found.knee is not None and found.knee.low <= 40 * 1.05


@pytest.mark.parametrize("slow_from_s", [10.0, 40.0, 80.0])
def test_it_ends_in_time_where_the_machine_becomes_slower(slow_from_s: float) -> None:
    server = Virtual(4, 0.1, slow_from_s=slow_from_s)
    found = Climb(server.hold, server.clock, BUDGET_S).run()
    assert server.now_s < 180
    assert found.knee is None or found.knee.low < 40


def test_too_few_requests_are_no_measurement() -> None:
    server = Virtual(1, 10.0)
    found = Climb(server.hold, server.clock, 60).run()
    assert found.knee is None
    assert "shorter answers" in found.why


def test_a_dead_server_and_a_slow_sender_are_told_apart() -> None:
    def dead(rate: float, seconds: float, burstiness: float) -> list[Outcome]:
        return [Outcome(0.0, 0.0, 0.1, fault="cannot be reached")]

    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        Climb(dead, lambda: 0.0, 60).run()
    server = Virtual(4, 0.1)

    def late(rate: float, seconds: float, burstiness: float) -> list[Outcome]:
        found = server.hold(rate, seconds, burstiness)
        return [
            Outcome(
                one.intended_s, one.intended_s + seconds / 2, one.ended_s, one.token_times_s, 8, 4
            )
            for one in found
        ]

    with pytest.raises(EngineUnavailable, match="this machine cannot load"):
        Climb(late, server.clock, 60).run()


def test_two_lines_are_found_and_one_is_not_two() -> None:
    rates = [float(x) for x in range(1, 13)]
    draw = random.Random(1)
    turned = [10 + 40 * max(0.0, x - 7.3) + draw.gauss(0, 2) for x in rates]
    knee = knee_of(rates, turned)
    assert knee is not None
    assert knee.rate == pytest.approx(7.3, abs=0.3)
    assert knee.low < 7.3 < knee.high
    assert knee_of(rates, [10 + 3 * x + draw.gauss(0, 2) for x in rates]) is None
    assert knee_of(rates, [10.0] * len(rates)) is None
    assert knee_of(rates[:5], turned[:5]) is None


def test_the_interval_holds_the_knee_as_often_as_it_says() -> None:
    rates = [x / 2 for x in range(2, 22)]
    draw = random.Random(7)
    held = 0
    for _ in range(20):
        values = [5 + max(0.0, x - 5.5) * 8 + draw.gauss(0, 2) for x in rates]
        knee = knee_of(rates, values)
        held += knee is not None and knee.low <= 5.5 <= knee.high
    assert held >= 17
