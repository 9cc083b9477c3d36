"""What is known of a server when somebody asks what is wrong: numbers now, lately, and before.

Owns: the arithmetic over snapshots: increases, means, quantiles, and their wording with a source.
May not know: what any of it means.
Read next: `causes.py`, which asks.

Three moments: `base`, `then`, `now`. What grew from `then` to `now` is lately; from `base` to
`then`, what was usual. A counter that fell began anew.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.entry import Kind
from firsthand.observe.recorded import RecordedFacts
from firsthand.observe.request_log import LogFacts
from firsthand.observe.snapshot import Snapshot
from firsthand.values import dataclass


class Answers(StrEnum):
    """What became of a question to the server itself."""

    YES = "yes"
    REFUSED = "refused"  # nobody listens there
    SILENT = "silent"  # connected, and no answer in time
    UNASKED = "unasked"


@dataclass(frozen=True, slots=True)
class Evidence:
    """`source` names where the numbers are from. Without `now` there are none. `requests` is what
    the flight recorder says, where it was asked."""

    limits: AlertSettings
    source: str
    now: Snapshot | None = None
    then: Snapshot | None = None
    base: Snapshot | None = None
    answers: Answers = Answers.UNASKED
    checks: tuple[tuple[str, str], ...] = ()  # those that fail, with their words
    log: LogFacts | None = None
    requests: RecordedFacts | None = None

    @property
    def window_s(self) -> float:
        return self.now.at_s - self.then.at_s if self.now and self.then else 0.0

    def values(self, name: str, **labels: str) -> list[float]:
        """Of a gauge, now."""
        return [] if self.now is None else [value for _, value in self.now.of(name, **labels)]

    def most(self, name: str, **labels: str) -> float:
        """The largest; 0 where there is none."""
        return max(self.values(name, **labels), default=0.0)

    def grown(self, name: str, **labels: str) -> float:
        """Lately, of a counter or a part of a histogram."""
        return _growth(self.then, self.now, _sample_name(name), labels)

    def usual(self, name: str, **labels: str) -> float:
        """The same, before."""
        return _growth(self.base, self.then, _sample_name(name), labels)

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """What grew lately, by a label's value; the most first."""
        now = [] if self.now is None else self.now.of(_sample_name(name), **labels)
        found = {one.get(label, "") for one, _ in now}
        grown = {value: self.grown(name, **labels, **{label: value}) for value in found}
        return dict(sorted(((k, v) for k, v in grown.items() if v > 0), key=lambda kv: -kv[1]))

    def mean(self, name: str, **labels: str) -> float | None:
        """Of what a histogram took in lately; None: nothing."""
        count = self.grown(f"{name}_count", **labels)
        return self.grown(f"{name}_sum", **labels) / count if count > 0 else None

    def usual_mean(self, name: str, **labels: str) -> float | None:
        count = self.usual(f"{name}_count", **labels)
        return self.usual(f"{name}_sum", **labels) / count if count > 0 else None

    def quantile(self, q: float, name: str, **labels: str) -> float | None:
        """The upper bound of the bucket in which it lies, lately."""
        now = [] if self.now is None else self.now.of(f"{name}_bucket", **labels)
        counts: defaultdict[float, float] = defaultdict(float)
        for bound in {one["le"] for one, _ in now if "le" in one}:
            counts[float(bound)] = self.grown(f"{name}_bucket", **labels, le=bound)
        whole = counts.get(math.inf, 0.0)
        if not whole:
            return None
        return min(bound for bound, count in counts.items() if count >= q * whole)

    def gained(self, name: str) -> float:
        """By how much a gauge is more than `then`, the largest of its series."""
        if self.now is None or self.then is None:
            return 0.0
        before = dict(_keyed(self.then.of(name)))
        now = _keyed(self.now.of(name))
        return max((value - before[key] for key, value in now if key in before), default=0.0)


def _sample_name(name: str) -> str:
    entry = CATALOGUE.get(name)
    counts = entry is not None and entry.kind is Kind.COUNTER
    return f"{name}_total" if counts and not name.endswith("_total") else name


def _growth(
    first: Snapshot | None, last: Snapshot | None, name: str, labels: dict[str, str]
) -> float:
    if last is None:
        return 0.0
    before = {} if first is None else dict(_keyed(first.of(name, **labels)))
    grown = 0.0
    for key, value in _keyed(last.of(name, **labels)):
        earlier = before.get(key, 0.0)
        grown += value - earlier if value >= earlier else value
    return grown


def _keyed(
    samples: Iterable[tuple[Mapping[str, str], float]],
) -> Iterator[tuple[frozenset[tuple[str, str]], float]]:
    for labels, value in samples:
        yield frozenset(labels.items()), value
