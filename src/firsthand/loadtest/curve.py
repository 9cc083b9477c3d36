"""What a load test found: latency and throughput by rate, and the knee; as values and as a file.

Owns: the file, its checks, what lies between two measured rates.
May not know: how anything was measured or is drawn, who plans with it.
Read next: `fit.py`, which finds the knee; `capacity.py`.

Standard library only, and low among the layers: alerts and scaling take their limits from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from firsthand.checks import check_choice, check_number, shown
from firsthand.errors import CheckpointError, InvalidRequest
from firsthand.files import parse_json_object, read_whole
from firsthand.values import dataclass

VERSION = 1
MAX_FILE_BYTES = 4 << 20
MAX_STEPS = 1000
MAX_ITEMS = 32 * MAX_STEPS  # of JSON: a step has 17
LEAST, MAX_VALUE = 1e-6, 1e12  # of rates and tokens, by which others are divided
KINDS = RAMP, FIT, AGAIN, BURSTS = "ramp", "fit", "again", "bursts"


@dataclass(frozen=True, slots=True)
class Step:
    """One rate, held for `seconds`. Latencies in ms from the intended send time, of what was
    answered; `judged_ms` is the mean with each failure as a wait of the whole step.
    `request_throughput`: answers per second while the step lasted, no more than were asked for.
    `kind`: ramp; fit, through which the knee was fitted; again, the worse one of two at a rate;
    bursts, with arrivals of a Poisson process, below the knee. All others are evenly spaced."""

    rate: float
    seconds: float
    completed: int
    failed: int
    request_throughput: float
    output_throughput: float
    judged_ms: float
    mean_e2el_ms: float
    median_e2el_ms: float
    p95_e2el_ms: float
    p99_e2el_ms: float
    median_ttft_ms: float
    p95_ttft_ms: float
    p99_ttft_ms: float
    median_tpot_ms: float
    p99_tpot_ms: float
    kind: str = RAMP

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name != "kind":
                check_number(one.name, getattr(self, one.name), 0, MAX_VALUE)
        check_choice("kind", self.kind, KINDS)


@dataclass(frozen=True, slots=True)
class Knee:
    """Requests per second at which latency turns, and where that is with 95 % likelihood."""

    rate: float
    low: float
    high: float

    def __post_init__(self) -> None:
        check_number("low", self.low, LEAST, MAX_VALUE)
        check_number("rate", self.rate, self.low, MAX_VALUE)
        check_number("high", self.high, self.rate, MAX_VALUE)


@dataclass(frozen=True, slots=True)
class Curve:
    """`input_tokens` and `output_tokens` are means of a request."""

    model: str
    input_tokens: float
    output_tokens: float
    knee: Knee
    steps: tuple[Step, ...]

    def of(self, kind: str) -> list[Step]:
        """Of one kind, by their rates."""
        return sorted([one for one in self.steps if one.kind == kind], key=lambda one: one.rate)

    def at(self, name: str, rate: float) -> float:
        """One figure at a rate, evenly asked for; beyond what was fitted it is the nearest one."""
        steps = self.of(FIT)
        for before, after in pairwise(steps):
            if before.rate <= rate <= after.rate:
                share = (rate - before.rate) / (after.rate - before.rate)
                low, high = float(getattr(before, name)), float(getattr(after, name))
                return low + (high - low) * share
        nearest = steps[0] if rate < steps[0].rate else steps[-1]
        return float(getattr(nearest, name))

    def rate_within(self, name: str, limit: float) -> float:
        """The highest rate of those measured with bursts at which the figure, and that of all lower
        rates, is within its limit; 0: not even the lowest one is."""
        steps = self.of(BURSTS)
        if getattr(steps[0], name) > limit:
            return 0.0
        for before, after in pairwise(steps):
            low, high = float(getattr(before, name)), float(getattr(after, name))
            if high > limit:
                share = (limit - low) / (high - low)
                return before.rate + (after.rate - before.rate) * share
        return steps[-1].rate

    @property
    def ongoing_requests(self) -> float:
        """That are under way at once at the knee: arrivals per second by seconds each (Little)."""
        return self.knee.rate * self.at("mean_e2el_ms", self.knee.rate) / 1e3

    def to_dict(self) -> dict[str, Any]:
        """As the file has it. `at_knee` is for readers, and follows from the rest."""
        names = ("median_ttft_ms", "p99_ttft_ms", "median_e2el_ms", "p99_e2el_ms")
        return {
            **_measured(self.model, self.input_tokens, self.output_tokens, self.steps),
            "knee": asdict(self.knee),
            "at_knee": {
                **{name: self.at(name, self.knee.rate) for name in names},
                "output_tokens_per_second": self.knee.rate * self.output_tokens,
                "ongoing_requests": self.ongoing_requests,
            },
        }


def without_knee(
    model: str, input_tokens: float, output_tokens: float, steps: Sequence[Step], why: str
) -> dict[str, Any]:
    """What was measured all the same; whoever needs a knee refuses it, and says `why`."""
    return {**_measured(model, input_tokens, output_tokens, steps), "knee": None, "why": why}


def _measured(
    model: str, input_tokens: float, output_tokens: float, steps: Sequence[Step]
) -> dict[str, Any]:
    return {
        "version": VERSION,
        "model": model,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "steps": [asdict(one) for one in steps],
    }


def read_curve(path: Path) -> Curve:
    """A file of `bench knee`. Raises InvalidRequest, naming the file and the field."""
    try:
        value = parse_json_object(read_whole(path, MAX_FILE_BYTES), str(path), MAX_ITEMS)
    except CheckpointError as error:
        raise InvalidRequest(str(path), error.message) from None
    if value.get("version") != VERSION:
        raise InvalidRequest(str(path), f"is no knee file of version {VERSION}")
    if value.get("knee", "") is None:
        why = f"has steps, but none was a knee: {shown(value.get('why'))}"
        raise InvalidRequest(str(path), f"{why}; run `bench knee` again")
    try:
        return _curve_of(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.field}", error.message) from None


def _curve_of(value: Mapping[str, Any]) -> Curve:
    model, rows = value.get("model"), value.get("steps")
    if not isinstance(model, str):
        raise InvalidRequest("model", f"must be a text, not {shown(model)}")
    if not isinstance(rows, list) or len(rows) > MAX_STEPS:
        raise InvalidRequest("steps", f"must be a list of at most {MAX_STEPS}")
    for name in ("input_tokens", "output_tokens"):
        check_number(name, value.get(name), LEAST * (name == "output_tokens"), MAX_VALUE)
    knee = Knee(**_fields_of("knee", value.get("knee"), Knee))
    steps = tuple(Step(**_fields_of("steps", row, Step)) for row in rows)
    found = Curve(model, value["input_tokens"], value["output_tokens"], knee, steps)
    for kind in (FIT, BURSTS):
        rates = [one.rate for one in found.of(kind)]
        if len(rates) < 2 or len(set(rates)) != len(rates):
            raise InvalidRequest("steps", f"needs two or more different rates of kind {kind}")
    least, most = found.of(FIT)[0].rate, found.of(FIT)[-1].rate
    if not least <= knee.low <= knee.high <= most:
        raise InvalidRequest(
            "knee", f"must lie within the rates of kind {FIT}, {least:g} … {most:g}"
        )
    return found


def _fields_of(where: str, row: object, kind: type) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    if not isinstance(row, dict) or row.keys() != names:
        raise InvalidRequest(where, f"must have {', '.join(sorted(names))}; it is {shown(row)}")
    return row
