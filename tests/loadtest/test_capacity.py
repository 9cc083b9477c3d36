"""S69, S102: how many replicas, with every assumption; the example of the books."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest

from firsthand.errors import InvalidRequest
from firsthand.loadtest.capacity import (
    LEAST,
    MOST,
    Plan,
    Wanted,
    plan,
    replica_of_curve,
    replica_of_rate,
)
from tests.loadtest.test_curve import curve


def planned(rate: float, wanted: Wanted) -> Plan:
    return plan(replica_of_rate(rate, wanted), wanted)


def test_s69_the_example_gives_twenty() -> None:
    found = planned(100, Wanted(10, 200, qps_is_peak=True))
    assert (found.replicas, found.peak, found.redundancy) == (20, 1, 1)
    assert found.question is None
    assert found.headroom == pytest.approx(0)
    assert found.machine_seconds_per_1k_tokens == pytest.approx(10)
    assert not found.one_machine_is_enough


def test_peak_and_redundancy_multiply_and_are_said() -> None:
    found = planned(100, Wanted(10, 200, peak=3, redundancy=1.5, cost_per_hour=7.2))
    assert found.replicas == 90
    assert found.headroom == pytest.approx(0.5)
    assert found.utilization_at_peak == pytest.approx(2 / 3)
    assert found.cost_per_1k_tokens == pytest.approx(7.2 / 3600 * 45)
    said = " ".join(found.assumptions)
    for word in ("100 tokens/s", "200 tokens", "3 × the mean", "redundancy 1.5", "7.2 an hour"):
        assert word in said
    assert found.question is not None
    assert "20 replicas" not in found.question
    assert "30 replicas" in found.question, "10 × 1.5 / 0.5"


def test_a_rate_of_which_nothing_is_said_is_asked_about() -> None:
    found = planned(100, Wanted(10, 200))
    assert found.replicas == 20
    assert found.question is not None
    assert "60 to 100 replicas" in found.question
    assert "peak factor 1, since none was given" in " ".join(found.assumptions)


def test_s102_one_machine_is_enough_or_is_not() -> None:
    enough = planned(100, Wanted(0.3, 200, qps_is_peak=True))
    assert enough.one_machine_is_enough
    assert "One machine is enough, up to 0.5 requests/s" in enough.advice
    assert "not enough" in planned(100, Wanted(0.6, 200, qps_is_peak=True)).advice
    assert "rule of thumb" in planned(100_000, Wanted(200, 200, qps_is_peak=True)).advice


@pytest.mark.parametrize("qps", [0.1, 0.2, 0.3, 0.7, 1.1])
def test_a_whole_share_needs_no_replica_for_its_rounding(qps: float) -> None:
    assert planned(1, Wanted(3 * qps, 1 / qps, qps_is_peak=True)).replicas == 3


def test_from_a_knee_its_lower_end_counts() -> None:
    wanted = Wanted(16, qps_is_peak=True)
    replica = replica_of_curve(curve(), wanted)
    assert (replica.qps, replica.tokens_per_second) == (8, 32)
    assert plan(replica, wanted).replicas == 2
    said = " ".join(replica.assumptions)
    assert "8 to 10 with 95 %" in said
    assert "evenly" in said
    other = replica_of_curve(curve(), replace(wanted, tokens=8))
    assert other.qps == 4
    assert "not the measured 4" in " ".join(other.assumptions)


def test_a_limit_of_the_first_token_lowers_it_or_is_refused() -> None:
    found = replica_of_curve(curve(), Wanted(10, slo_ttft_ms=60))
    assert found.qps == 5, "with bursts P99 30 ms at 4 requests/s, 120 at 7"
    assert replica_of_curve(curve(), Wanted(10, slo_ttft_ms=500)).qps == 7
    with pytest.raises(InvalidRequest, match="slo_ttft"):
        replica_of_curve(curve(), Wanted(10, slo_ttft_ms=29))
    with pytest.raises(InvalidRequest, match="slo_ttft"):
        replica_of_rate(100, Wanted(10, 200, slo_ttft_ms=500))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"peak": 3, "qps_is_peak": True}, "peak"),
        ({"peak": 0.5}, "peak"),
        ({"redundancy": 0.9}, "redundancy"),
        ({"qps": 0}, "qps"),
        ({"qps": float("nan")}, "qps"),
        ({"qps": 1e-300}, "qps"),
        ({"tokens": -1}, "tokens"),
        ({"tokens": 1e-300}, "tokens"),
        ({"cost_per_hour": 0}, "cost_per_hour"),
    ],
)
def test_a_bad_value_is_named(given: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Wanted(**({"qps": 10} | given))  # type: ignore[arg-type]
    assert refused.value.field == field


def test_the_least_and_the_most_are_still_finite() -> None:
    """Each bound of one figure with each of the others: a quotient that ends in 0 or infinity would
    be a fault of ours."""
    for rate, tokens, qps, more in product((LEAST, MOST), (LEAST, MOST), (LEAST, MOST), (1, 1e6)):
        found = planned(rate, Wanted(qps, tokens, peak=more, redundancy=more, cost_per_hour=MOST))
        json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(InvalidRequest, match="tokens_per_second"):
        replica_of_rate(1e-320, Wanted(10, 1e9))
