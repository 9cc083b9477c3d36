"""S110: what a replica says of itself."""

from __future__ import annotations

import os

import pytest

from firsthand.cluster.own_load import LEAST_ANSWERS, WINDOW_S, OwnLoad
from firsthand.request import TokenEvent

P99 = "firsthand_p99_ttft_ms"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_first_tokens_of_the_last_minute_from_when_they_were_asked_for() -> None:
    clock = Clock()
    load = OwnLoad(1, "cpu", clock)
    for number in range(LEAST_ANSWERS):
        assert P99 not in load.report(0, 0, []), "too few"
        load.asked(str(number))
        load.stepped([TokenEvent(str(number), None, clock.now + 0.1)])
        clock.now += 0.25
        load.stepped([TokenEvent(str(number), 5, clock.now), TokenEvent(str(number), 6, clock.now)])
    assert load.report(3, 4, [])[P99] == pytest.approx(250)
    clock.now += WINDOW_S + 3
    assert load.report(3, 4, []) == {
        "firsthand_running": 3.0,
        "firsthand_waiting": 4.0,
        "firsthand_cpu": 0.0,
    }


def test_who_ended_without_a_token_is_forgotten() -> None:
    load = OwnLoad(1, "cpu", Clock())
    load.asked("a")
    load.ended("a")
    load.stepped([TokenEvent("a", 5, 999.0)])
    assert P99 not in load.report(0, 0, [])


def test_the_processor_is_a_share_of_its_cores_since_the_report_before() -> None:
    clock = Clock()
    load = OwnLoad(0.001, "cpu", clock)
    assert "firsthand_cpu" not in load.report(0, 0, [os.getpid()]), "since nothing"
    sum(range(3_000_000))
    clock.now += 1.0
    assert load.report(0, 0, [os.getpid()])["firsthand_cpu"] == 1.0, "of a thousandth of a core"
    clock.now += 1.0
    assert "firsthand_cpu" not in load.report(0, 0, [1 << 30]), "who is gone says nothing"
