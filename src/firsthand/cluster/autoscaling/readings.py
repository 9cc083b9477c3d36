"""What replicas report, and what a decision takes of it.

Owns: the names of the figures on their way, which of them are too old, their sums.
May not know: what is decided; who carries a report.
Read next: `policy.py`.

A figure that is missing, old or no number is none: never 0, and never what it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from firsthand.values import dataclass

PREFIX = "firsthand_"
NAMES = ("running", "waiting", "cpu", "device", "p99_ttft_ms")
CLOCKS_APART_S = 5.0  # of two machines: a report from further in the future is none


@dataclass(frozen=True, slots=True)
class Report:
    """Of one replica: when it was made (seconds, by the clock of who decides), requests that run
    and that wait, shares of processor and device in use, P99 of the first token. None: unknown."""

    at: float
    running: float
    waiting: float
    cpu: float | None = None
    device: float | None = None
    p99_ttft_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """Of all replicas. `replicas`: how many there are or are being started; `reported`: how many
    of those that run have reported in time, and `silent` have not. Requests are sums over
    those that have, shares their means, the latency the worst."""

    replicas: int
    reported: int
    silent: int
    running: float = 0.0
    waiting: float = 0.0
    cpu: float | None = None
    device: float | None = None
    p99_ttft_ms: float | None = None

    @property
    def complete(self) -> bool:
        return self.reported > 0 and self.silent == 0


def figures(
    *,
    running: float,
    waiting: float,
    cpu: float | None = None,
    device: float | None = None,
    p99_ttft_ms: float | None = None,
) -> dict[str, float]:
    """As a replica sends it: numbers under our names; what is unknown is left out."""
    values = (running, waiting, cpu, device, p99_ttft_ms)
    found = zip(NAMES, values, strict=True)
    return {PREFIX + name: float(value) for name, value in found if value is not None}


def report_of(at: float, sent: Mapping[str, float]) -> Report | None:
    """None where something needed is missing, or anything is no finite number of 0 or more."""
    values = {name: sent.get(PREFIX + name) for name in NAMES}
    known = [value for value in values.values() if value is not None]
    if not all(math.isfinite(value) and value >= 0 for value in [*known, at]):
        return None
    running, waiting = values.pop("running"), values.pop("waiting")
    if running is None or waiting is None:
        return None
    return Report(at, running, waiting, **values)


def readings_of(
    replicas: int,
    reports: Iterable[Report | None],
    now: float,
    stale_s: float,
    *,
    waiting_before: float = 0.0,
) -> Readings:
    """`reports`: one for each replica that runs. `waiting_before`: requests that no replica has
    been given yet."""
    found = list(reports)
    fresh = [one for one in found if one is not None and -CLOCKS_APART_S <= now - one.at <= stale_s]
    late = [one.p99_ttft_ms for one in fresh if one.p99_ttft_ms is not None]
    return Readings(
        replicas=replicas,
        reported=len(fresh),
        silent=len(found) - len(fresh),
        running=sum(one.running for one in fresh),
        waiting=sum(one.waiting for one in fresh) + waiting_before,
        cpu=_mean([one.cpu for one in fresh]),
        device=_mean([one.device for one in fresh]),
        p99_ttft_ms=max(late, default=None),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
