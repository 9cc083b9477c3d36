"""S110, S111: what is decided, and what can never be.

VERS-5 (constant load, noise), VERS-7 (missing and stale readings). Each property is drawn; the
named cases below say what is meant.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.cluster.autoscaling.limits import Limits
from firsthand.cluster.autoscaling.policy import BUSY, NUM_PEAKS, Decision, State, decide
from firsthand.cluster.autoscaling.readings import Readings, Report, readings_of

LIMITS = Limits(
    max_replicas=8,
    ongoing_out=10,
    queue_out=5,
    p99_ttft_ms=1000,
    cpu_out=0.9,
    device_out=0.9,
    confirm_s=0,
    out_cooldown_s=10,
    start_s=20,
    in_cooldown_s=60,
    empty_s=40,
    look_back_s=120,
)


def some(replicas: int, *, waiting: float = 0.0, running: float = 0.0, **more: float) -> Readings:
    return Readings(replicas, replicas, 0, running, waiting, **more)


def silent(replicas: int) -> Readings:
    return Readings(replicas, 0, replicas)


class Run:
    """Decisions one after another, each obeyed at once."""

    def __init__(self, replicas: int = 1, limits: Limits = LIMITS) -> None:
        self.limits, self.replicas, self.now = limits, replicas, 1000.0
        self.state: State | None = None
        self.outs: list[float] = []
        self.ins: list[float] = []

    def ask(self, readings: Readings, *, after_s: float = 1.0) -> Decision:
        self.now += after_s
        decision = decide(self.limits, self.state, readings, self.now)
        if decision.replicas > readings.replicas:
            self.outs.append(self.now)
        elif decision.replicas < readings.replicas:
            self.ins.append(self.now)
        self.state, self.replicas = decision.state, decision.replicas
        return decision

    def quiet(self, seconds: float, *, running: float = 0.0) -> Decision:
        for _ in range(round(seconds / 5)):
            decision = self.ask(some(self.replicas, running=running), after_s=5)
        return decision


def test_a_queue_adds_a_replica_at_once_and_says_why() -> None:
    decision = Run(2).ask(some(2, waiting=11))
    assert decision.replicas == 3
    assert "11 requests wait, 5 a replica may" in decision.reason


def test_a_long_queue_doubles_and_no_more() -> None:
    assert Run(2).ask(some(2, waiting=500)).replicas == 4
    assert Run(1).ask(some(1, waiting=500)).replicas == 2
    assert Run(6).ask(some(6, waiting=500)).replicas == 8


def test_while_one_starts_the_next_waits_for_it_but_not_for_ever() -> None:
    run = Run(1)
    assert run.ask(some(1, waiting=50)).replicas == 2
    starting = Readings(2, 1, 0, 10, 50)
    held = run.ask(starting, after_s=15)
    assert held.replicas == 2
    assert "are being started since 15 s" in held.reason
    assert run.ask(starting, after_s=6).replicas == 4


def test_one_reading_is_not_enough() -> None:
    run = Run(2, replace(LIMITS, confirm_s=5))
    assert "not for 5 s yet" in run.ask(some(2, waiting=50)).reason
    assert run.ask(some(2), after_s=4).replicas == 2
    assert run.ask(some(2, waiting=50), after_s=4).replicas == 2
    assert run.ask(some(2, waiting=50), after_s=5).replicas == 4


def test_a_queue_that_will_be_gone_before_another_is_ready_adds_none() -> None:
    run = Run(1)
    run.ask(some(1, running=10, waiting=200))
    assert run.replicas == 2
    run.ask(Readings(2, 1, 0, 10, 300), after_s=15)
    assert "some came 0 s ago" in run.ask(some(2, running=20, waiting=300), after_s=10).reason
    falling = run.ask(some(2, running=20, waiting=180), after_s=11)
    assert (falling.replicas, "gone in 16 s" in falling.reason) == (2, True)
    assert run.ask(some(2, running=20, waiting=175), after_s=11).replicas == 4, "not that fast"


def test_who_was_needed_again_soon_stays_longer_the_next_time() -> None:
    run = Run(2)
    run.quiet(125)
    assert run.replicas == 1
    run.ask(some(1, waiting=6), after_s=60)
    assert run.replicas == 2
    assert run.quiet(235).replicas == 2, "two look backs are one now"
    assert run.quiet(30).replicas == 1


@pytest.mark.parametrize("name", ["cpu", "device"])
def test_processors_and_devices_count_where_they_have_a_limit(name: str) -> None:
    busy = some(2, running=1, **{name: 0.95})
    assert Run(2).ask(busy).replicas == 3
    assert Run(2, replace(LIMITS, cpu_out=None, device_out=None)).ask(busy).replicas == 2


def test_a_late_first_token_counts_only_under_load() -> None:
    assert Run(2).ask(some(2, running=18, p99_ttft_ms=2000)).replicas == 3
    assert Run(2).ask(some(2, running=10, p99_ttft_ms=2000)).replicas == 2
    assert Run(2).ask(some(2, running=18, p99_ttft_ms=900)).replicas == 2


def test_s111_in_only_after_minutes_of_quiet_and_one_at_a_time() -> None:
    run = Run(4)
    assert run.quiet(120).replicas == 4
    assert run.quiet(5).replicas == 3
    assert run.quiet(55).replicas == 3
    assert run.quiet(5).replicas == 2
    run.quiet(55)
    run.ask(some(2, waiting=3))
    assert run.quiet(40).replicas == 2, "something waited"
    assert run.quiet(5).replicas == 1
    assert run.quiet(1000).replicas == 1
    assert "as few as there may be" in run.quiet(5).reason


def test_what_the_others_could_not_carry_stays() -> None:
    run = Run(3)
    assert run.quiet(1000, running=15).replicas == 3, "1.5 of 2, and 1.4 are allowed"
    assert run.quiet(1000, running=13).replicas == 2


def test_vers_7_who_is_not_heard_of_stays() -> None:
    run = Run(3)
    run.quiet(115)
    for step in range(12):
        decision = run.ask(silent(3), after_s=5)
        assert decision.replicas == 3
        assert decision.blind == (step >= 3)
    assert "3 replicas have not reported for 15 s" in decision.reason
    assert run.quiet(115).replicas == 3, "a whole look back begins anew"
    assert run.quiet(10).replicas == 2


def test_vers_7_a_frozen_value_is_known_by_its_age() -> None:
    frozen = Report(0.0, running=8, waiting=40, cpu=0.99)
    assert decide(LIMITS, None, readings_of(2, [frozen, frozen], 10.0, 15.0), 10.0).replicas == 4
    assert decide(LIMITS, None, readings_of(2, [frozen, frozen], 60.0, 15.0), 60.0).replicas == 2


def test_a_part_that_reports_is_enough_for_more() -> None:
    assert Run(3).ask(Readings(3, 1, 2, 8, 40)).replicas == 6


def test_a_clock_that_goes_back_begins_anew() -> None:
    run = Run(2)
    run.quiet(500)
    run.now -= 400
    assert run.replicas == 1
    run.replicas = 2
    assert run.quiet(100).replicas == 2
    assert run.ask(some(2, waiting=50)).replicas == 4


def test_bounds_that_change_are_obeyed_at_once() -> None:
    assert Run(9).ask(some(9)).replicas == 8
    assert Run(1, replace(LIMITS, min_replicas=3)).ask(silent(1)).replicas == 3


def test_vers_5_constant_load_that_needs_three() -> None:
    """±20 %, ten minutes, from 1: at three and there it stays."""
    run = Run(1)
    for step in range(600):
        load = 25 * (1 + 0.2 * math.sin(step * 1.7))
        run.ask(some(run.replicas, running=load))
    assert run.replicas == 3
    assert not run.ins
    assert len([at for at in run.outs if at > 1060]) <= 1


amounts = st.floats(0, 200)
maybe = st.none() | st.floats(0, 1)
steps = st.lists(
    st.tuples(
        st.floats(0.05, 90),  # seconds to the next
        amounts,
        amounts,
        maybe,
        maybe,
        st.none() | st.floats(0, 5000),
        st.integers(0, 3),  # 0: nobody reports; 1: a part
    ),
    max_size=60,
)
PROPERTY = settings(deadline=None, max_examples=60)


Row = tuple[float, float, float, float | None, float | None, float | None, int]


def heard(run: Run, row: Row) -> Readings:
    _, waiting, running, cpu, device, late, part = row
    if part == 0:
        return silent(run.replicas)
    left_out = run.replicas // 2 if part == 1 else 0
    reported = run.replicas - left_out
    return Readings(run.replicas, reported, left_out, running, waiting, cpu, device, late)


@PROPERTY
@given(steps, st.integers(1, 3), st.integers(0, 5))
def test_bounds_and_cool_downs_always_hold(rows: list[Row], least: int, more: int) -> None:
    limits = replace(LIMITS, min_replicas=least, max_replicas=least + more)
    run = Run(least, limits)
    for row in rows:
        readings, before = heard(run, row), run.replicas
        decision = run.ask(readings, after_s=row[0])
        assert least <= decision.replicas <= least + more
        assert decision.replicas >= before - 1
        assert decision.reason
        assert decision.replicas >= before or readings.complete, "nobody is removed unheard"
        assert len(decision.state.peaks) <= NUM_PEAKS + 2
    for at in run.ins:
        earlier = [1000.0, *(one for one in (*run.outs, *run.ins) if one < at)]
        assert at - max(earlier) >= limits.in_cooldown_s
    for before_s, after_s in zip(run.outs, run.outs[1:], strict=False):
        assert after_s - before_s >= limits.out_cooldown_s


@PROPERTY
@given(steps, amounts, amounts)
def test_a_longer_queue_never_leads_to_fewer(rows: list[Row], one: float, other: float) -> None:
    run = Run(1)
    for row in rows:
        run.ask(heard(run, row), after_s=row[0])
    now = run.now + 5
    short, long = (
        decide(LIMITS, run.state, some(run.replicas, waiting=waiting, running=5), now).replicas
        for waiting in sorted((one, other))
    )
    assert short <= long


@PROPERTY
@given(
    st.floats(1, 7),
    st.lists(st.tuples(st.floats(0.1, 12), st.floats(0, 1), st.booleans()), max_size=200),
)
def test_noise_never_brings_back_what_was_removed(
    most: float, rows: list[tuple[float, float, bool]]
) -> None:
    """D is the highest demand; anything may happen below it, and readings may be missing; but each
    look back holds one of `in_share` / `BUSY` × D at least. Then in some order replicas are added,
    then removed, and never added again."""
    run = Run(1)
    floor, peak_at = LIMITS.in_share / BUSY, 0.0
    for after_s, share, is_silent in rows:
        if is_silent and run.now + after_s - peak_at < LIMITS.look_back_s / 2:
            run.ask(silent(run.replicas), after_s=after_s)
            continue
        if run.now + after_s - peak_at > LIMITS.look_back_s / 2:
            share = floor + share * (1 - floor)
            peak_at = run.now + after_s
        demand = share * most * LIMITS.ongoing_out
        late_ms = 5000.0 if is_silent else 10.0
        run.ask(some(run.replicas, running=demand, p99_ttft_ms=late_ms), after_s=after_s)
    if run.ins and run.outs:
        assert max(run.outs) < min(run.ins)


@PROPERTY
@given(st.lists(st.floats(-1e9, 1e9) | st.just(math.nan), min_size=1, max_size=4))
def test_readings_take_only_what_is_young(ages: list[float]) -> None:
    reports = [Report(-age, running=1, waiting=0) for age in ages]
    found = readings_of(len(ages), reports, 0.0, 15.0)
    assert found.reported == sum(-5 <= age <= 15 for age in ages)
    assert found.reported + found.silent == len(ages)
    assert found.running == found.reported
