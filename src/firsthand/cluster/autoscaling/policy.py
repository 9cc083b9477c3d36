"""How many replicas there should be now: one pure function.

Owns: the decision, its reason in words, and all that it remembers.
May not know: who asks, how a replica is started or drained.
Read next: `limits.py`; `simulator.py`, which judges it.
Seen in: `firsthand lab autoscaler`.

Every figure is turned into a demand: how many replicas it keeps busy. Beyond as many as there are,
at once some are added; only when the highest demand of a long look back fits well into one less,
one is taken away. So what makes a replica leave cannot, unless the load rises beyond all of that
time, make it come back: let D be the highest demand of all, and let each look back hold one of at
least `in_share` / `BUSY` × D; then nothing is ever added after something was taken away.
"""

from __future__ import annotations

import math
from dataclasses import replace

from firsthand.cluster.autoscaling.limits import Limits
from firsthand.cluster.autoscaling.readings import Readings
from firsthand.values import dataclass

BUSY = 0.85  # of a replica's demand: below that a late first token has another cause than the load
NUM_PEAKS = 64
MOST_PATIENCE = 8  # look backs in one, after those that were too short
MARK_S, NUM_MARKS = 5.0, 4  # of the queue's length: how it goes, over so long
SETTLE_S = 10.0  # in which those that have come show what they do


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest demand of one part of the look back."""

    since: float
    demand: float


@dataclass(frozen=True, slots=True)
class Mark:
    """How many waited at a time."""

    at: float
    waiting: float


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered from one decision to the next; times are those of the asker's clock.
    `complete_at`: when all replicas last were heard of; `watched_since`: since when, without a
    gap; `quiet_since`: since when nothing waited; `over_since`: since when more are needed. None:
    never, or not now. `patience`: how many look backs are one; `marks`: of the queue, since as many
    replicas as `ready` run."""

    at: float
    replicas: int
    changed_at: float
    out_at: float | None = None
    in_at: float | None = None
    patience: int = 1
    ready: int = 0
    marks: tuple[Mark, ...] = ()
    complete_at: float | None = None
    watched_since: float | None = None
    quiet_since: float | None = None
    over_since: float | None = None
    peaks: tuple[Peak, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """A figure as a demand in replicas, and in words."""

    demand: float
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """`blind`: some have been silent for too long, which somebody should know."""

    replicas: int
    state: State
    reason: str
    blind: bool = False


def decide(limits: Limits, state: State | None, readings: Readings, now: float) -> Decision:
    """`state` None: nothing is remembered, so nothing is taken away for a whole look back; so it is
    with a clock that goes back."""
    signals = _signals(limits, readings)
    demand = max(one.demand for one in signals)
    cause = _cause(limits, readings, signals)
    seen = _seen(limits, state, readings, demand, now)
    over_since = None if cause is None else now if seen.over_since is None else seen.over_since
    seen = replace(seen, over_since=over_since)
    replicas, reason = _wanted(limits, seen, readings, demand, cause)
    if replicas > readings.replicas:
        seen = replace(_warned(limits, seen), replicas=replicas, changed_at=now, out_at=now)
    elif replicas < readings.replicas:
        seen = replace(seen, replicas=replicas, changed_at=now, in_at=now)
    heard_at = seen.changed_at if seen.complete_at is None else seen.complete_at
    return Decision(replicas, seen, reason, blind=now - heard_at > limits.stale_s)


def _signals(limits: Limits, readings: Readings) -> list[Signal]:
    """The queue first: it shows at once what the others show later."""
    waiting, ongoing = readings.waiting, readings.waiting + readings.running
    found = [
        Signal(
            waiting / limits.queue_out,
            f"{waiting:.4g} requests wait, {limits.queue_out:.3g} a replica may",
        ),
        Signal(
            ongoing / limits.ongoing_out,
            f"{ongoing:.4g} requests are under way, {limits.ongoing_out:.3g} a replica may be",
        ),
    ]
    for name, share, limit in (
        ("processors", readings.cpu, limits.cpu_out),
        ("devices", readings.device, limits.device_out),
    ):
        if share is not None and limit is not None:
            text = f"{name} are {share:.0%} in use, {limit:.0%} may be"
            found.append(Signal(readings.reported * share / limit, text))
    return found


def _cause(limits: Limits, readings: Readings, signals: list[Signal]) -> str | None:
    """Why more are needed."""
    for one in signals:
        if one.demand > readings.replicas:
            return one.text
    late_ms, limit_ms = readings.p99_ttft_ms, limits.p99_ttft_ms
    if late_ms is None or limit_ms is None or late_ms <= limit_ms:
        return None
    if max(one.demand for one in signals) <= BUSY * readings.replicas:
        return None
    return f"99 first tokens of 100 take up to {late_ms:.4g} ms, {limit_ms:.4g} they may"


def _seen(
    limits: Limits, state: State | None, readings: Readings, demand: float, now: float
) -> State:
    """The state with what these readings add to it."""
    if state is None or now < state.at:
        state = State(now, readings.replicas, now)
    elif state.replicas != readings.replicas:  # by someone else
        state = replace(state, replicas=readings.replicas, changed_at=now)
    if state.complete_at is None or now - state.complete_at > limits.stale_s:
        state = replace(state, watched_since=None, quiet_since=None)
    if readings.complete:
        watched_since = now if state.watched_since is None else state.watched_since
        quiet_since = now if state.quiet_since is None else state.quiet_since
        state = replace(
            state, complete_at=now, watched_since=watched_since, quiet_since=quiet_since
        )
    if readings.waiting > limits.queue_empty:
        state = replace(state, quiet_since=None)
    ready = readings.reported + readings.silent
    marks = state.marks if ready == state.ready else ()
    if readings.reported and (not marks or now - marks[-1].at >= MARK_S):
        marks = (*marks, Mark(now, readings.waiting))[-NUM_MARKS:]
    peaks = _with_peak(state.peaks, demand, now, limits.look_back_s * MOST_PATIENCE)
    return replace(state, at=now, peaks=peaks, ready=ready, marks=marks)


def _warned(limits: Limits, state: State) -> State:
    """Replicas are needed again: if one was taken away a look back ago, that was too short."""
    if state.in_at is None or state.at - state.in_at > state.patience * limits.look_back_s:
        return state
    return replace(state, patience=min(2 * state.patience, MOST_PATIENCE))


def _with_peak(
    peaks: tuple[Peak, ...], demand: float, now: float, longest_s: float
) -> tuple[Peak, ...]:
    """A part is forgotten when all of it lies before the longest look back."""
    length_s = longest_s / NUM_PEAKS
    kept = tuple(one for one in peaks if one.since + length_s >= now - longest_s)
    if kept and now - kept[-1].since < length_s:
        return (*kept[:-1], Peak(kept[-1].since, max(kept[-1].demand, demand)))
    return (*kept, Peak(now, demand))


def _wanted(
    limits: Limits, state: State, readings: Readings, demand: float, cause: str | None
) -> tuple[int, str]:
    current = readings.replicas
    bounded = min(max(current, limits.min_replicas), limits.max_replicas)
    if bounded != current:
        return bounded, f"there may be {limits.min_replicas} to {limits.max_replicas}"
    if cause is not None:
        return _more(limits, state, readings, demand, cause)
    if current == limits.min_replicas:
        return current, "all is within its limits, and there are as few as there may be"
    held = _why_not_less(limits, state, readings)
    if held is not None:
        return current, held
    return current - 1, (
        f"nothing has waited for {limits.empty_s:g} s, and {current - 1} carry the most of "
        f"{state.patience * limits.look_back_s:g} s, which kept {_peak(limits, state):.2g} busy"
    )


def _more(
    limits: Limits, state: State, readings: Readings, demand: float, cause: str
) -> tuple[int, str]:
    current = readings.replicas
    if current == limits.max_replicas:
        return current, f"{cause}, but there are as many as there may be"
    held = _why_not_more(limits, state, readings)
    if held is not None:
        return current, f"{cause}, but {held}"
    most = max(current + 1, math.floor(limits.out_factor * current))
    wanted = max(current + 1, math.ceil(min(demand, most)))
    return min(wanted, limits.max_replicas), cause


def _why_not_more(limits: Limits, state: State, readings: Readings) -> str | None:
    now = state.at
    if state.over_since is None or now - state.over_since < limits.confirm_s:
        return f"not for {limits.confirm_s:g} s yet"
    starting = readings.replicas > state.ready
    pause_s = max(limits.out_cooldown_s, limits.start_s if starting else 0.0)
    if state.out_at is not None:
        since_s = now - state.out_at
        if since_s < pause_s:
            return f"some {'are being started' if starting else 'were added'} since {since_s:.0f} s"
        settled_s = now - state.marks[0].at if state.marks else 0.0
        if settled_s < SETTLE_S and since_s < pause_s + limits.start_s + SETTLE_S:
            return f"some came {settled_s:.0f} s ago"
    gone_s = _gone_s(state, readings)
    if gone_s <= max(limits.out_cooldown_s, limits.start_s):
        return f"the queue will be gone in {gone_s:.0f} s"
    return None


def _gone_s(state: State, readings: Readings) -> float:
    """Seconds until nobody waits, if the queue goes on as it did since these replicas run; infinite
    where it does not fall. One that is added now would come too late for it."""
    if not state.marks or not readings.complete or readings.waiting == 0:
        return math.inf
    first = state.marks[0]
    fallen, seconds = first.waiting - readings.waiting, state.at - first.at
    return readings.waiting * seconds / fallen if fallen > 0 and seconds > 0 else math.inf


def _why_not_less(limits: Limits, state: State, readings: Readings) -> str | None:
    now, fewer = state.at, readings.replicas - 1
    if readings.silent:
        return f"{readings.silent} replicas have not reported for {limits.stale_s:g} s: all stay"
    if state.watched_since is None:
        return "no replica has reported yet"
    if state.quiet_since is None or now - state.quiet_since < limits.empty_s:
        return f"nothing must have waited for {limits.empty_s:g} s"
    if now - state.changed_at < limits.in_cooldown_s:
        return f"changed {now - state.changed_at:.0f} s ago, {limits.in_cooldown_s:g} s must pass"
    look_back_s = state.patience * limits.look_back_s
    if now - state.watched_since < look_back_s:
        return f"watched for {now - state.watched_since:.0f} s of {look_back_s:g}"
    if _peak(limits, state) > limits.in_share * fewer:
        return f"{fewer} would not carry the most of {look_back_s:g} s with room to spare"
    return None


def _peak(limits: Limits, state: State) -> float:
    """The highest demand of the look back."""
    length_s = limits.look_back_s * MOST_PATIENCE / NUM_PEAKS
    since = state.at - state.patience * limits.look_back_s
    return max(one.demand for one in state.peaks if one.since + length_s >= since)
