"""How many replicas a load needs, and what it costs: arithmetic on a measurement.

Owns: the arithmetic, and every assumption in it, in words.
May not know: how the knee was measured.
Read next: `curve.py`.

    replicas = ceil(rate × peak × redundancy / what one replica takes)

One replica takes what was given (tokens per second by tokens per request), or the lower end of the
knee's interval, or the highest measured rate at which a limit of the first token's time is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from firsthand.checks import check_number
from firsthand.errors import InvalidRequest
from firsthand.loadtest.curve import BURSTS, Curve
from firsthand.values import dataclass

LEAST, MOST = 1e-6, 1e9  # of what is divided by
USUAL_PEAK, USUAL_REDUNDANCY = "3 to 5", "1.5 to 2"
FAMILIAR_QPS, CROWDED_QPS = 50, 100  # by rule of thumb one machine does; and no longer does
ROUNDING = 1e-9  # of a share that was meant to be whole


@dataclass(frozen=True, slots=True)
class Wanted:
    """The load: requests per second, tokens of an answer (None: as measured). `peak` None: not
    said, 1. `cost_per_hour`: of one replica, in any currency. Raises InvalidRequest."""

    qps: float
    tokens: float | None = None
    peak: float | None = None
    qps_is_peak: bool = False
    redundancy: float = 1.0
    slo_ttft_ms: float | None = None
    cost_per_hour: float | None = None

    def __post_init__(self) -> None:
        check_number("qps", self.qps, LEAST, MOST)
        if self.tokens is not None:
            check_number("tokens", self.tokens, LEAST, MOST)
        for name in ("slo_ttft_ms", "cost_per_hour"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, MOST, low_open=True)
        if self.peak is not None:
            check_number("peak", self.peak, 1, 1e6)
            if self.qps_is_peak:
                raise InvalidRequest(
                    "peak", "goes with a mean rate; with --qps-is-peak the rate is the peak's"
                )
        check_number("redundancy", self.redundancy, 1, 1e6)


@dataclass(frozen=True, slots=True)
class Replica:
    """What one takes, in requests and tokens per second, and where that is from."""

    qps: float
    tokens_per_second: float
    tokens: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`headroom`: what the replicas take beyond the peak, as a share of the peak. Seconds and cost
    are of all replicas, per thousand tokens of answers at the given rate. `question`: what should
    be asked back; None: it was said."""

    replicas: int
    peak: float
    redundancy: float
    qps_at_peak: float
    qps_per_replica: float
    tokens_per_second_per_replica: float
    headroom: float
    utilization_at_peak: float
    machine_seconds_per_1k_tokens: float
    cost_per_1k_tokens: float | None
    one_machine_is_enough: bool
    one_machine_up_to_qps: float
    advice: str
    question: str | None
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def replica_of_rate(tokens_per_second: float, wanted: Wanted) -> Replica:
    """From a known rate. Raises InvalidRequest."""
    check_number("tokens_per_second", tokens_per_second, LEAST, MOST)
    if wanted.tokens is None:
        raise InvalidRequest("tokens", "is needed: how long an answer is")
    if wanted.slo_ttft_ms is not None:
        raise InvalidRequest("slo_ttft", "needs a measured curve: --from KNEE.json")
    qps = tokens_per_second / wanted.tokens
    said = (
        f"one replica generates {tokens_per_second:g} tokens/s, at any load up to that: it was "
        "given, not measured, and says nothing of latency",
        f"an answer has {wanted.tokens:g} tokens, so one replica takes "
        f"{tokens_per_second:g} / {wanted.tokens:g} = {qps:.4g} requests/s",
    )
    return Replica(qps, tokens_per_second, wanted.tokens, said)


def replica_of_curve(curve: Curve, wanted: Wanted) -> Replica:
    """From a measured knee. Raises InvalidRequest where no measured rate keeps the limit."""
    knee = curve.knee
    qps = knee.low
    least, *_, crowded = curve.of(BURSTS)
    said = [
        f"the knee of {curve.model} was measured at {knee.rate:.4g} requests/s "
        f"({knee.low:.4g} to {knee.high:.4g} with 95 %); the lower end counts",
        f"requests are like the measured ones: about {curve.input_tokens:.0f} tokens of prompt",
        f"the knee is that of requests sent evenly; with bursts the P99 of the first token was "
        f"{crowded.p99_ttft_ms:.0f} ms at {crowded.rate:.4g} requests/s",
    ]
    if wanted.slo_ttft_ms is not None:
        within = curve.rate_within("p99_ttft_ms", wanted.slo_ttft_ms)
        if not within:
            raise InvalidRequest(
                "slo_ttft",
                f"{wanted.slo_ttft_ms:g} ms is not kept even at the lowest measured rate: the P99 "
                f"of the first token was {least.p99_ttft_ms:.0f} ms at {least.rate:.3g} requests/s",
            )
        qps = min(qps, within)
        said.append(
            f"at {qps:.4g} requests/s that come in bursts 99 first tokens of a hundred take at "
            f"most {wanted.slo_ttft_ms:g} ms, so no more count"
        )
    tokens_per_second = qps * curve.output_tokens
    tokens = curve.output_tokens if wanted.tokens is None else wanted.tokens
    if tokens != curve.output_tokens:
        said.append(
            f"an answer has {tokens:g} tokens, not the measured {curve.output_tokens:g}: the same "
            f"{tokens_per_second:.4g} tokens/s make {tokens_per_second / tokens:.4g} requests/s; "
            "measure with that length to be sure"
        )
    else:
        said.append(f"an answer has {tokens:g} tokens, as measured")
    return Replica(tokens_per_second / tokens, tokens_per_second, tokens, tuple(said))


def plan(replica: Replica, wanted: Wanted) -> Plan:
    peak = wanted.peak or 1.0
    at_peak = wanted.qps * peak
    needed = at_peak * wanted.redundancy
    replicas = max(1, math.ceil(needed / replica.qps * (1 - ROUNDING)))
    capacity = replicas * replica.qps
    seconds = replicas / (wanted.qps * replica.tokens) * 1000
    per_hour = wanted.cost_per_hour
    one_up_to = replica.qps / (peak * wanted.redundancy)
    return Plan(
        replicas=replicas,
        peak=peak,
        redundancy=wanted.redundancy,
        qps_at_peak=at_peak,
        qps_per_replica=replica.qps,
        tokens_per_second_per_replica=replica.tokens_per_second,
        headroom=capacity / at_peak - 1,
        utilization_at_peak=at_peak / capacity,
        machine_seconds_per_1k_tokens=seconds,
        cost_per_1k_tokens=None if per_hour is None else per_hour * seconds / 3600,
        one_machine_is_enough=replicas == 1,
        one_machine_up_to_qps=one_up_to,
        advice=_advice(replicas, one_up_to, at_peak),
        question=_question(replica, wanted),
        assumptions=(*replica.assumptions, *_assumptions(wanted, peak, replica)),
    )


def _assumptions(wanted: Wanted, peak: float, replica: Replica) -> Sequence[str]:
    if wanted.qps_is_peak:
        yours = f"{wanted.qps:g} requests/s are the peak, as you said"
    elif wanted.peak is None:
        yours = f"peak factor 1, since none was given: the usual one is {USUAL_PEAK}"
    else:
        yours = f"the peak is {peak:g} × the mean of {wanted.qps:g} requests/s"
    spare = "none was given" if wanted.redundancy == 1 else "as you said"
    price = (
        "no cost, since no --cost-per-hour was given; machine time instead"
        if wanted.cost_per_hour is None
        else f"a replica costs {wanted.cost_per_hour:g} an hour, also while it is idle"
    )
    return (
        yours,
        f"redundancy {wanted.redundancy:g}, {spare}: the usual one is {USUAL_REDUNDANCY}",
        "replicas share the load evenly, each on a machine of its own like the measured one",
        f"time and cost per thousand tokens are those of answers, {wanted.qps:g} × "
        f"{replica.tokens:g} a second all day",
        price,
    )


def _advice(replicas: int, one_up_to: float, at_peak: float) -> str:
    if replicas == 1:
        text = f"One machine is enough, up to {one_up_to:.4g} requests/s as they were given here."
        if at_peak > CROWDED_QPS:
            text += (
                f" That is beyond the rule of thumb ({CROWDED_QPS} requests/s, or 3 billion "
                "parameters), but what was measured counts."
            )
        return text + " A second one is for the time in which the first is down."
    text = f"One machine is not enough: it takes up to {one_up_to:.4g} requests/s."
    if at_peak <= FAMILIAR_QPS:
        text += (
            f" Others do up to {FAMILIAR_QPS} on one, with models below a billion parameters: look "
            "first whether a smaller or quantised model, or shorter answers, do here."
        )
    return text


def _question(replica: Replica, wanted: Wanted) -> str | None:
    if wanted.qps_is_peak:
        return None
    if wanted.peak is None:
        rates = [wanted.qps * factor * wanted.redundancy for factor in (3, 5)]
        few, many = (math.ceil(rate / replica.qps * (1 - ROUNDING)) for rate in rates)
        return (
            f"Is {wanted.qps:g} requests/s already your peak? Then say --qps-is-peak. If it is the "
            f"mean, a peak of {USUAL_PEAK} times that needs {few} to {many} replicas: say --peak."
        )
    alone = math.ceil(wanted.qps * wanted.redundancy / replica.qps * (1 - ROUNDING))
    return (
        f"Is {wanted.qps:g} requests/s already your peak? Then it is {max(1, alone)} replicas: say "
        "--qps-is-peak in place of --peak."
    )
