"""Admission under a clock of the test: bounds, order of refusals, drain rate, ladder, rates.

Owns: proof of `gate.py`, `queue.py`, `drain_rate.py`, `shedding.py`.
Read next: `test_guard_rates.py`, `test_guard_http.py`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.request import Priority
from firsthand.server.guard.call import Call, Caller, Quota
from firsthand.server.guard.drain_rate import DrainRate
from firsthand.server.guard.gate import Gate, Grant
from firsthand.server.guard.queue import LONGEST_RETRY_S, Bounds
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.shedding import DOWN_AFTER_S, Ladder, shed_field
from firsthand.server.guard.work import Work, capped

WORK = Work(num_prompt_tokens=10, max_tokens=20)


MODEL = ""  # of a gate with one queue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(bounds: Bounds, clock: Clock, jitter: float = 0.5) -> Gate:
    gate = Gate(bounds, clock, lambda: jitter)
    gate.queue(MODEL)
    return gate


def call(clock: Clock, caller: Caller | None = None) -> Call:
    return Call("req", caller or Caller(), clock())


def refusal(gate: Gate, clock: Clock, work: Work = WORK, caller: Caller | None = None) -> Refused:
    with pytest.raises(Refused) as found:
        gate.admit(call(clock, caller), [work])[0]
    return found.value


def test_ops_7_running_and_waiting_are_taken_the_rest_refused() -> None:
    """2 run, 4 wait, 20 come at once: 6 are taken, 14 are told when to come back."""
    clock = Clock()
    gate = make(Bounds(max_running=2, max_waiting=4, shed=False), clock)
    tickets, refused = [], []
    for _ in range(20):
        try:
            tickets.append(gate.admit(call(clock), [WORK])[0])
        except Refused as one:
            refused.append(one)
        assert gate.queue(MODEL).num_waiting <= 4
    assert (len(tickets), len(refused)) == (6, 14)
    assert {(one.status, one.code) for one in refused} == {(503, "queue_full")}
    assert all(dict(one.headers())["retry-after"] for one in refused)
    for ticket in tickets:
        ticket.close()
        ticket.close()
    assert (gate.num_open, gate.queue(MODEL).num_waiting) == (0, 0)
    gate.admit(call(clock), [WORK])[0]


def test_o_6_a_flood_of_others_does_not_keep_the_urgent_out() -> None:
    """Of 16 places to wait in two are theirs, and they do not wait behind the others."""
    clock = Clock()
    gate = make(Bounds(max_running=2, max_waiting=16, max_wait_s=3.0, shed=False), clock)
    for _ in range(100):  # one a second
        ticket = gate.admit(call(clock), [WORK])[0]
        clock.now += 1.0
        ticket.close()
    gate.set_bounds(replace(gate.bounds, max_wait_s=0.0))
    for _ in range(16):
        gate.admit(call(clock), [WORK])[0]
    assert refusal(gate, clock).code == "queue_full"
    gate.set_bounds(replace(gate.bounds, max_wait_s=3.0))
    urgent = replace(WORK, priority=Priority.URGENT)
    for _ in range(2):
        gate.admit(call(clock), [urgent])[0]
    assert refusal(gate, clock, urgent).code == "queue_full"
    with pytest.raises(Refused, match="queue is full"):
        gate.check(call(clock))


def test_retry_after_is_the_measured_time_of_the_queue() -> None:
    """One ends every half second and 8 wait: 4 s, with jitter of a fifth. Who is refused after
    others comes back after them."""
    clock = Clock()
    gate = make(Bounds(max_running=2, max_waiting=9, shed=False), clock)
    tickets = [gate.admit(call(clock), [WORK])[0] for _ in range(10)]
    for _ in range(40):
        clock.now += 0.5
        tickets.pop(0).close()
        tickets.append(gate.admit(call(clock), [WORK])[0])
    assert gate.queue(MODEL).ended_per_s == pytest.approx(2.0, rel=0.1)
    assert refusal(gate, clock).retry_after_s == pytest.approx(4.0, rel=0.1)
    for jitter, after_s in ((0.0, (8 + 1) / 2.0 * 0.8), (1.0, (8 + 2) / 2.0 * 1.2)):
        gate.jitter = lambda jitter=jitter: jitter  # type: ignore[misc]
        assert refusal(gate, clock).retry_after_s == pytest.approx(after_s, rel=0.1)
    found = refusal(gate, clock)
    headers = dict(found.headers())
    assert found.retry_after_s is not None
    assert int(headers["retry-after-ms"]) == pytest.approx(found.retry_after_s * 1e3, abs=1)


def test_o_5_those_who_were_refused_together_come_back_at_the_pace_of_the_queue() -> None:
    """200 at once, ten of which can be served per second: over twenty seconds, not in one."""
    clock, draw = Clock(), random.Random(1)
    gate = make(Bounds(max_running=10, max_waiting=8, max_wait_s=0.0, shed=False), clock)
    tickets = [gate.admit(call(clock), [WORK])[0] for _ in range(17)]
    for _ in range(300):
        clock.now += 0.1
        tickets.pop(0).close()
        tickets += gate.admit(call(clock), [WORK])
    assert gate.queue(MODEL).ended_per_s == pytest.approx(10.0, rel=0.3)
    gate.jitter = draw.random
    back_s = sorted(refusal(gate, clock).retry_after_s or 0.0 for _ in range(200))
    assert back_s[100] > 3.0 and back_s[-1] > 12.0 and back_s[-1] <= LONGEST_RETRY_S
    most = max(sum(at <= one < at + 1.0 for one in back_s) for at in range(60))
    assert most < 20, f"{most} come back in one second"


def test_o_6_a_flood_of_one_key_leaves_room_for_another() -> None:
    """One at 50 times its share: whoever else comes is let in, and gets an equal part."""
    clock = Clock()
    bounds = Bounds(max_running=4, max_waiting=16, max_wait_s=0.0, shed=False, shared=True)
    gate = make(bounds, clock)
    greedy, other = Caller("greedy"), Caller("other")

    def held(caller: Caller) -> int:
        for _ in range(50):
            try:
                gate.admit(call(clock, caller), [WORK])
            except Refused as refused:
                assert refused.code in ("queue_share_exceeded", "queue_full")
                assert refused.status == (429 if refused.code == "queue_share_exceeded" else 503)
                assert refused.retry_after_s is not None
        return gate.queue(MODEL)._held[caller.tenant]

    assert held(greedy) == 9  # half of 18, though nobody else is there yet
    assert held(other) == 6  # a third, with one kept for the next
    assert held(Caller("third")) == 3  # what is left
    gate.set_bounds(replace(bounds, shared=False))
    gate.admit(call(clock, greedy), [replace(WORK, priority=Priority.URGENT)])


def test_who_finds_nobody_is_not_refused_for_a_pace_of_long_ago() -> None:
    clock = Clock()
    gate = Gate(Bounds(max_running=4, max_waiting=16, max_wait_s=30.0), clock, lambda: 0.5)
    (slow,) = gate.admit(call(clock), [WORK])
    clock.now += 60.0
    slow.close(1)
    many = gate.admit(call(clock), [WORK] * 18)
    assert len(many) == 18
    with pytest.raises(Refused, match="queue"):
        gate.admit(call(clock), [WORK] * 2)


def test_a_flood_for_one_model_fills_its_own_queue() -> None:
    clock, levels = Clock(), []
    gate = Gate(Bounds(), clock, lambda: 0.5)
    gate.listen = lambda model, level, pressure: levels.append((model, level))
    for model in ("small", "large"):
        gate.set_bounds(Bounds(max_running=2, max_waiting=4), model)
    for _ in range(6):
        gate.check(call(clock))
        gate.admit(call(clock), [replace(WORK, priority=Priority.URGENT)], "large")
    with pytest.raises(Refused, match="queue is full"):
        gate.check(call(clock), "large")
    gate.check(call(clock))  # who names no model yet may mean the other one
    gate.admit(call(clock), [replace(WORK, logprobs=True)], "small")
    assert {model for model, _ in levels} == {"large"}
    assert (gate.level("large"), gate.level("small"), gate.level()) == (4, 0, 4)
    assert (gate.queue("large").num_refused, gate.queue("small").num_refused) == (1, 0)
    assert gate.queue("small").expected_wait_s() == 0.0
    for _ in range(5):
        gate.admit(call(clock), [replace(WORK, priority=Priority.URGENT)], "small")
    with pytest.raises(Refused, match="queue is full"):
        gate.check(call(clock))
    assert gate.num_refused_unnamed == 1


def test_an_answer_without_a_limit_is_taken_for_what_such_answers_are() -> None:
    """Not for the whole context; and what it came to is what the key has used."""
    clock = Clock()
    gate = make(Bounds(), clock)
    caller = Caller("key", quota=Quota(tokens_per_minute=1000))
    work = Work(num_prompt_tokens=10, max_tokens=100_000, open_ended=True)

    def left() -> int:
        return int(dict(gate.rates.headers(caller, clock()))["x-ratelimit-remaining-tokens"])

    (ticket,) = gate.admit(call(clock, caller), [work])
    assert left() == 1000 - 10 - 256
    ticket.close(40)
    assert left() == 1000 - 10 - 40
    for _ in range(100):
        gate.admit(call(clock), [work])[0].close(40)
    (ticket,) = gate.admit(call(clock, caller), [work])
    assert left() == pytest.approx(950 - 10 - 40, abs=2)
    ticket.close(2000)  # it was a long one
    assert left() == 0
    assert refusal(gate, clock, work, caller).status == 429
    clock.now += 66.0  # what it took beyond the minute's worth has to flow in again
    assert refusal(gate, clock, work, caller).status == 429
    clock.now += 10.0
    gate.admit(call(clock, caller), [work])
    assert refusal(gate, clock, replace(work, open_ended=False), caller).status == 429


def test_o_8_where_memory_is_spent_the_least_urgent_is_ended() -> None:
    """The last that came of the lowest class, one at a time; the urgent are left."""
    clock = Clock()
    ended: list[int] = []
    gate = make(Bounds(), clock)
    classes = (Priority.NORMAL, Priority.BACKGROUND, Priority.BACKGROUND, Priority.URGENT)
    for number, one in enumerate(classes):
        asked = Call(f"r{number}", Caller(), clock())
        (ticket,) = gate.admit(asked, [replace(WORK, priority=one)])
        ticket.end = partial(ended.append, number)
    gate.memory_used = 0.979
    assert gate.end_one() is None
    gate.memory_used = 0.981
    assert [gate.end_one() for _ in range(4)] == ["r2", "r1", "r0", None]
    assert ended == [2, 1, 0]


def test_the_rate_forgets_idle_time() -> None:
    rate = DrainRate()
    rate.pass_time(0.0, busy=False)
    assert rate.per_second is None
    for second in range(1, 11):
        rate.pass_time(float(second), busy=True)
        rate.note(3)
    before = rate.per_second
    assert before == pytest.approx(3.0, rel=0.15)
    rate.pass_time(3600.0, busy=False)
    assert rate.per_second == before
    rate.pass_time(3500.0, busy=True)  # a clock that steps back changes nothing
    assert rate.per_second == before


def test_s_43_what_can_never_fit_is_the_callers_mistake() -> None:
    clock = Clock()
    gate = make(Bounds(max_running=2, max_waiting=4), clock)
    found = refusal(gate, clock, replace(WORK, n=7))
    assert (found.status, found.param, found.retry_after_s) == (400, "n", None)


def test_a_full_queue_of_tokens() -> None:
    clock = Clock()
    gate = make(Bounds(max_running=1, max_waiting=50, max_waiting_tokens=70), clock)
    for _ in range(3):
        gate.admit(call(clock), [WORK])[0]
    assert gate.queue(MODEL).num_waiting_tokens == 60
    assert refusal(gate, clock).code == "queue_full"


def measured(clock: Clock, bounds: Bounds) -> tuple[Gate, list[Grant]]:
    """A gate in which one place becomes free per second."""
    gate = make(bounds, clock)
    tickets = [gate.admit(call(clock), [WORK])[0] for _ in range(6)]
    for _ in range(20):
        clock.now += 1.0
        tickets.pop(0).close()
        tickets.append(gate.admit(call(clock), [WORK])[0])
    return gate, tickets


def test_o_4_a_deadline_that_the_queue_cannot_meet_is_refused_at_the_door() -> None:
    clock = Clock()
    gate, _ = measured(clock, Bounds(max_running=1, max_waiting=50, shed=False))
    late = refusal(gate, clock, replace(WORK, timeout_s=2.0))
    assert (late.status, late.code, late.kind) == (408, "deadline_exceeded", "timeout_error")
    assert late.retry_after_s is not None
    in_time = gate.admit(call(clock), [replace(WORK, timeout_s=20.0)])[0]
    assert in_time.deadline_s == clock() + 20.0
    unhurried = gate.admit(call(clock), [WORK])[0]
    assert unhurried.deadline_s == clock() + gate.bounds.request_timeout_s


def test_who_waits_for_an_answer_does_not_wait_behind_background_work() -> None:
    clock = Clock()
    gate, tickets = measured(clock, Bounds(max_running=1, max_waiting=500, shed=False))
    for ticket in tickets:
        ticket.close()
    background = replace(WORK, priority=Priority.BACKGROUND)
    for _ in range(8):
        gate.admit(call(clock), [background])
    late = refusal(gate, clock, replace(background, timeout_s=4.0))
    assert late.code == "deadline_exceeded"
    gate.admit(call(clock), [replace(WORK, timeout_s=4.0)])


def test_a_queue_that_takes_too_long_is_full() -> None:
    clock = Clock()
    gate, _ = measured(clock, Bounds(max_running=1, max_waiting=500, max_wait_s=5.5, shed=False))
    assert refusal(gate, clock).code == "queue_full"


def test_the_parts_of_a_request_are_admitted_together_or_not_at_all() -> None:
    clock, seen = Clock(), []
    gate = make(Bounds(max_running=2, max_waiting=8), clock)  # one place of the queue is urgent's
    gate.listen = lambda model, level, pressure: seen.append(level)
    caller = Caller("key", quota=Quota(tokens_per_minute=4 * WORK.num_tokens))
    with pytest.raises(Refused) as never:
        gate.admit(call(clock), [WORK] * 11)
    assert (never.value.status, never.value.param) == (400, "prompt")
    with pytest.raises(Refused) as rate:
        gate.admit(call(clock, caller), [WORK] * 5)
    assert rate.value.status == 429
    assert (gate.num_open, seen) == (0, [])
    assert len(gate.admit(call(clock, caller), [WORK] * 4)) == 4  # nothing was taken before
    gate.admit(call(clock), [WORK] * 5)
    with pytest.raises(Refused) as full:
        gate.admit(call(clock), [WORK])
    assert (full.value.status, full.value.code) == (503, "queue_full")
    gate.admit(call(clock), [replace(WORK, priority=Priority.URGENT)])


def test_o_7_optional_work_is_shed_in_order_and_comes_back() -> None:
    clock, seen = Clock(), []
    gate = make(Bounds(max_running=1, max_waiting=114, long_output_tokens=64), clock)  # 100 for all
    gate.listen = lambda model, level, pressure: seen.append(level)
    optional = {
        "logprobs": replace(WORK, logprobs=True),
        "n": replace(WORK, n=2),
        "max_tokens": replace(WORK, max_tokens=65),
        "priority": replace(WORK, priority=Priority.BACKGROUND),
    }
    tickets = []
    for places, shed in ((51, 1), (66, 2), (81, 3), (91, 4)):
        while gate.queue(MODEL).num_waiting < places:
            tickets.append(gate.admit(call(clock), [WORK])[0])
        for number, (field, work) in enumerate(optional.items()):
            if number < shed:
                found = refusal(gate, clock, work)
                assert (found.status, found.code, found.param) == (503, "degraded", field)
                assert found.retry_after_s is not None
            else:
                gate.admit(call(clock), [work])[0].close()
    assert seen == [1, 2, 3, 4]
    for ticket in tickets:
        ticket.close()
    for _ in range(6):
        clock.now += DOWN_AFTER_S
        gate.tick()
    assert seen == [1, 2, 3, 4, 3, 2, 1, 0]
    gate.admit(call(clock), [optional["priority"]])[0]


def test_the_ladder_does_not_flap() -> None:
    ladder = Ladder()
    levels = [ladder.update(0.5 + (0.1 if i % 2 else -0.1), i / 10) for i in range(200)]
    assert set(levels[1:]) == {1}


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 5)), max_size=60))
@settings(deadline=None, max_examples=50)
def test_a_level_is_never_left_by_more_than_one_step_down(moves: list[tuple[float, float]]) -> None:
    ladder, now, before = Ladder(), 0.0, 0
    for pressure, passed in moves:
        now += passed
        level = ladder.update(pressure, now)
        assert before - 1 <= level <= 4
        before = level


def test_level_0_serves_everything() -> None:
    everything = Work(1, 10**6, n=9, logprobs=True, priority=Priority.BACKGROUND)
    assert shed_field(everything, 0, 10) is None


def test_o_8_memory_closes_the_door_in_steps() -> None:
    clock = Clock()
    gate = make(Bounds(max_running=4), clock)
    gate.memory_used = 0.93
    gate.tick()
    assert gate.level() == 4
    gate.admit(call(clock), [WORK])[0]
    gate.memory_used = 0.96
    found = refusal(gate, clock)
    assert (found.status, found.code) == (503, "degraded")


def test_s62_an_engine_that_gave_up_its_reserve_sheds_all_that_can_be() -> None:
    clock = Clock()
    gate = make(Bounds(), clock)
    gate.memory_short = True
    gate.tick()
    assert gate.level() == 4
    assert refusal(gate, clock, replace(WORK, n=2)).code == "degraded"
    gate.admit(call(clock), [WORK])[0].close()


def test_a_closed_door_says_why() -> None:
    clock = Clock()
    gate = make(Bounds(), clock)
    gate.door = lambda: Refused(503, "draining", "draining", retry_after_s=5)
    with pytest.raises(Refused, match="draining"):
        gate.check(call(clock))
    assert refusal(gate, clock).code == "draining"
    assert gate.queue(MODEL).num_refused == 2


def test_a_priority_is_capped_by_the_key() -> None:
    assert capped(Priority.URGENT, Priority.NORMAL) is Priority.NORMAL
    assert capped(Priority.BACKGROUND, Priority.NORMAL) is Priority.BACKGROUND
    clock = Clock()
    caller = Caller("k", highest_priority=Priority.BACKGROUND)
    assert (
        make(Bounds(), clock).admit(call(clock, caller), [WORK])[0].priority is Priority.BACKGROUND
    )
