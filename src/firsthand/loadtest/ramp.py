"""The way to the knee: rates doubled until answers fall behind, then steps around that rate.

Owns: which rate comes next and for how long, when a step has fallen behind, when to stop.
May not know: how a request is sent (it is given `hold`), which clock it is.
Read next: `fit.py`, which says where the knee is; `curve.py`.

A lone request says how long an answer takes. From the rate at which one after another would be
answered, the rate is doubled; a step has fallen behind when answers at its end take longer than in
its middle, by as much as a quarter more load than the server can take would explain, and fewer
come a second than were asked for. What it answered meanwhile is what it can: around that rate equal
steps follow, up and down again, and the knee is fitted through the better one of each rate, since
whatever else a machine does can only delay. Before each step
everything of the one before has ended.

So far requests are sent evenly: a queue then begins where the server is full, and at no earlier
burst, so the knee is sharp and repeats. Users come in bursts. How long they wait below the knee is
measured afterwards, with arrivals of a Poisson process.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from firsthand.errors import EngineUnavailable
from firsthand.loadtest.arrivals import CONSTANT, MAX_RATE
from firsthand.loadtest.curve import AGAIN, BURSTS, FIT, Knee, Step
from firsthand.loadtest.fit import knee_of
from firsthand.loadtest.outcomes import Outcome
from firsthand.loadtest.summary import faults, summary
from firsthand.percentile import percentile
from firsthand.values import dataclass

Hold = Callable[[float, float, float], Sequence[Outcome]]  # rate, seconds, burstiness
SHARES = (0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)  # of what the server can, about
PASSES = 2  # up, and down again
BURST_SHARES, LEAST_BURSTS = (0.5, 0.9, 0.8, 0.7), 2  # of the lower end of the knee
POISSON = 1.0  # a burstiness
LONE_REQUESTS = 3
ANSWERS_LONG, ANSWERS_SHORT = 6, 4  # a step's length, in lone answers, if there is time
RAMP_SHARE = 1 / 24  # of the budget, for one step of the ramp
SHORTEST_S, LONGEST_S = 1.0, 15.0
EXCESS = 0.25  # of load over what the server can: then it has fallen behind
MAX_FAILED = 0.05
KEEPS_UP = 0.9  # of what was asked for
LEAST_REQUESTS = 6  # of a step at the knee: with fewer nothing can be said
MORE_TIME = "it takes more --max-seconds, or shorter answers"
OWN_DELAY_SHARE = 0.1  # of a step: then it is the sender that falls behind


@dataclass(frozen=True, slots=True)
class Ramp:
    """What was measured; `knee` None: latency did not turn, `why` says so."""

    steps: tuple[Step, ...]
    knee: Knee | None
    why: str
    input_tokens: float
    output_tokens: float


@dataclass(slots=True, eq=False)
class Climb:
    """`hold` keeps a rate for some seconds and returns when all of its requests have ended;
    `clock` is in seconds. `told` hears of each step, `begins` of each phase, in words."""

    hold: Hold
    clock: Callable[[], float]
    budget_s: float
    told: Callable[[Step], None] = lambda step: None
    max_rate: float = MAX_RATE
    begins: Callable[[str], None] = lambda phase: None

    def run(self) -> Ramp:
        """Raises EngineUnavailable where nothing is answered, or the sender is too slow."""
        until_s = self.clock() + self.budget_s
        alone = [self._lone() for _ in range(LONE_REQUESTS + 1)][1:]  # the first one warms up
        answer_s = statistics.median(one.e2el_s for one in alone)
        steps, most, why = self._ramp(answer_s, until_s)
        if why:
            return _found(steps, None, why, alone)
        passes = PASSES
        step_s = self._step_s(until_s, answer_s, passes)
        if step_s < ANSWERS_SHORT * answer_s:
            passes = 1
            step_s = self._step_s(until_s, answer_s, passes)
        if most * step_s < LEAST_REQUESTS:
            why = f"{most:.3g} requests a second are few in a step of {step_s:.2g} s: {MORE_TIME}"
            return _found(steps, None, why, alone)
        around = self._around(most, step_s, passes, until_s)
        fitted = better_of(around)
        steps += [replace(one, kind=FIT if one in fitted else AGAIN) for one in around]
        knee = knee_of([one.rate for one in fitted], [one.judged_ms for one in fitted])
        if knee is None:
            why = f"latency has no clear turn around {most:.3g} requests a second; {MORE_TIME}"
            return _found(steps, None, why, alone)
        return _found([*steps, *self._bursts(knee.low, step_s, until_s)], knee, "", alone)

    def _ramp(self, answer_s: float, until_s: float) -> tuple[list[Step], float, str]:
        """The steps, about what the server can, and why there is no knee, if there is none."""
        ramp_s = _within(ANSWERS_LONG * answer_s, self.budget_s * RAMP_SHARE)
        steps, rate = [], min(1 / answer_s, self.max_rate)
        self.begins("doubled until answers fall behind")
        while True:
            outcomes = self.hold(rate, ramp_s, CONSTANT)
            steps.append(self._step(outcomes, rate, ramp_s))
            if has_fallen_behind(outcomes, rate, ramp_s):
                return steps, pace(outcomes) or rate, ""
            if rate >= self.max_rate:
                return steps, rate, f"latency does not turn up to {rate:.4g} requests a second"
            if self.clock() + 2 * ramp_s > until_s:
                why = f"latency has not turned at {rate:.3g} requests a second, and {MORE_TIME}"
                return steps, rate, why
            rate = min(2 * rate, self.max_rate)

    def _around(self, most: float, step_s: float, passes: int, until_s: float) -> list[Step]:
        """A second pass ends early where the server is slower than it seemed: each rate has a step
        by then."""
        found: list[Step] = []
        rates = list(dict.fromkeys(min(most * share, self.max_rate) for share in SHARES))
        for number in range(passes):
            self.begins(f"around {most:.3g} requests/s, the way {'down' if number % 2 else 'up'}")
            for rate in reversed(rates) if number % 2 else rates:
                if number and self.clock() > until_s - 2 * LEAST_BURSTS * step_s:
                    return found
                found.append(self._step(self.hold(rate, step_s, CONSTANT), rate, step_s))
        return found

    def _bursts(self, rate: float, step_s: float, until_s: float) -> list[Step]:
        found: list[Step] = []
        self.begins("with bursts, below the knee")
        for share in BURST_SHARES:
            if len(found) < LEAST_BURSTS or self.clock() <= until_s:
                step = self._step(self.hold(rate * share, step_s, POISSON), rate * share, step_s)
                found.append(replace(step, kind=BURSTS))
        return found

    def _step_s(self, until_s: float, answer_s: float, passes: int) -> float:
        """So that all of them end in time, with what queued above the knee answered, too."""
        units = passes * sum(max(1.0, share) for share in SHARES) + len(BURST_SHARES)
        num_steps = passes * len(SHARES) + len(BURST_SHARES)
        return _within((until_s - self.clock() - num_steps * answer_s) / units, LONGEST_S)

    def _lone(self) -> Outcome:
        (one,) = self.hold(1.0, 1.0, CONSTANT)
        if one.fault:
            raise EngineUnavailable(f"a lone request was not answered: {one.fault}")
        return one

    def _step(self, outcomes: Sequence[Outcome], rate: float, seconds: float) -> Step:
        delay_s = percentile([one.sent_s - one.intended_s for one in outcomes], 0.5)
        if delay_s > OWN_DELAY_SHARE * seconds:
            raise EngineUnavailable(
                f"at {rate:.4g} requests a second they are sent {delay_s:.2g} s too late: this "
                "machine cannot load that server; use another one, or fewer tokens"
            )
        step = step_of(outcomes, rate, seconds)
        if not step.completed:
            raise EngineUnavailable(f"nothing is answered any more: {faults(outcomes)[0][0]}")
        self.told(step)
        return step


def step_of(outcomes: Sequence[Outcome], rate: float, seconds: float) -> Step:
    found = summary(outcomes, percentiles=(95, 99))
    good_ms = [one.e2el_s * 1e3 for one in outcomes if not one.fault]
    judged = [*good_ms, *(max(seconds * 1e3, *good_ms, 0.0) for one in outcomes if one.fault)]
    # Answers that a hiccup held back come all at once; they are no rate that was kept.
    throughput = min(rate, pace(outcomes) or found["request_throughput"])
    tokens = found["total_output_tokens"] / max(1, found["completed"])
    names = [f"{kind}_e2el_ms" for kind in ("mean", "median", "p95", "p99")]
    names += [f"{kind}_ttft_ms" for kind in ("median", "p95", "p99")]
    names += [f"{kind}_tpot_ms" for kind in ("median", "p99")]
    return Step(
        rate=rate,
        seconds=seconds,
        completed=found["completed"],
        failed=found["failed"],
        request_throughput=throughput,
        output_throughput=throughput * tokens,
        judged_ms=statistics.fmean(judged) if judged else 0.0,
        **{name: found[name] for name in names},
    )


def better_of(steps: Sequence[Step]) -> list[Step]:
    """Of each rate the step with the shorter answers: what else a machine does can only delay."""
    best: dict[float, Step] = {}
    for one in steps:
        if one.rate not in best or one.judged_ms < best[one.rate].judged_ms:
            best[one.rate] = one
    return list(best.values())


def pace(outcomes: Sequence[Outcome]) -> float:
    """Answers per second between the ends of the first and the last tenth; 0: too few to say."""
    ends = sorted(one.ended_s for one in outcomes if not one.fault)
    first, last = len(ends) // 10, len(ends) - 1 - len(ends) // 10
    if last - first < 2 or ends[last] <= ends[first]:
        return 0.0
    return (last - first) / (ends[last] - ends[first])


def has_fallen_behind(outcomes: Sequence[Outcome], rate: float, seconds: float) -> bool:
    """A queue that grows makes each answer later than the one before it: in half a step by half of
    what the load exceeds the server."""
    failed = sum(bool(one.fault) for one in outcomes)
    if failed > MAX_FAILED * len(outcomes):
        return True
    good = [one for one in outcomes if not one.fault]
    quarters = [[one.e2el_s for one in good if _quarter(one, seconds) == at] for at in (1, 3)]
    if not all(quarters):
        return False
    middle_s, end_s = (statistics.median(one) for one in quarters)
    return end_s - middle_s > EXCESS * seconds / 2 and pace(outcomes) < KEEPS_UP * rate


def _quarter(one: Outcome, seconds: float) -> int:
    return min(3, int(4 * one.intended_s / seconds))


def _within(wanted_s: float, most_s: float) -> float:
    return max(SHORTEST_S, min(wanted_s, most_s, LONGEST_S))


def _found(steps: Sequence[Step], knee: Knee | None, why: str, alone: Sequence[Outcome]) -> Ramp:
    return Ramp(
        tuple(steps),
        knee,
        why,
        statistics.fmean(one.input_tokens for one in alone),
        statistics.fmean(one.output_tokens for one in alone),
    )
