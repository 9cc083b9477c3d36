"""What became of the alerts of the last days: fired, answered, flapping, silent.

Owns: episodes and the judgement of them. Times are arguments.
May not know: where episodes come from in detail; what is printed.
Read next: `received.py`, the record; `alerts.py`, the rules.

An episode is one firing of one alert with its labels, from beginning to end. It is answered if
somebody said so while it lasted, or within a day after it. It flaps if it began within half an
hour of the end of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firsthand.observe.received import Answer, Notice
from firsthand.values import dataclass

DAY_S = 86400.0
FLAP_S = 1800.0
FLAPS = 3  # so many within the days that are looked at, and the rule is to be mended


@dataclass(frozen=True, slots=True)
class Episode:
    """`ended_s` None: it fires. `labels` tell apart two that fire at once."""

    alert: str
    severity: str
    labels: frozenset[tuple[str, str]]
    began_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of one rule."""

    alert: str
    severity: str
    num_fired: int
    num_unanswered: int
    num_flapping: int
    total_s: float
    fires_now: bool
    advice: str


def episodes_of_record(notices: Iterable[Notice]) -> list[Episode]:
    """Repeated and twice delivered notices of one firing are one episode."""
    found: dict[tuple[str, float], Notice] = {}
    for notice in notices:
        key = (notice.fingerprint, notice.began_s)
        before = found.get(key)
        if before is None or before.ended_s is None:
            found[key] = notice
    return [
        Episode(one.alert, one.severity, frozenset(one.labels.items()), one.began_s, one.ended_s)
        for one in found.values()
    ]


def episodes_of_series(
    series: Sequence[Mapping[str, Any]], step_s: float, now_s: float
) -> list[Episode]:
    """From the answer of Prometheus to `ALERTS{alertstate="firing"}`, one sample every `step_s`: a
    gap is an end. Raises KeyError, TypeError, ValueError for what is no such answer."""
    found = []
    for one in series:
        labels = dict(one["metric"])
        labels.pop("__name__", None)
        labels.pop("alertstate", None)
        times = [float(at) for at, _ in one["values"]]
        began_s = times[0]
        for before, after in zip(times, [*times[1:], None], strict=True):
            if after is not None and after - before <= 1.5 * step_s:
                continue
            goes_on = after is None and now_s - before <= 1.5 * step_s
            found.append(
                Episode(
                    labels["alertname"],
                    labels.get("severity", ""),
                    frozenset(labels.items()),
                    began_s,
                    None if goes_on else before,
                )
            )
            began_s = before if after is None else after
    return found


def review(
    episodes: Iterable[Episode],
    answers: Sequence[Answer],
    rules: Mapping[str, str],
    since_s: float,
    now_s: float,
) -> list[Verdict]:
    """One verdict per alert, the most urgent first. `rules` are the tiers of all that there are,
    by name: those that never fired are told too. Episodes that ended before `since_s` are not."""
    by_alert: dict[str, list[Episode]] = {name: [] for name in rules}
    tiers = dict(rules)
    for one in episodes:
        if one.ended_s is None or one.ended_s >= since_s:
            by_alert.setdefault(one.alert, []).append(one)
            tiers.setdefault(one.alert, one.severity)
    verdicts = [
        _judge(name, tiers[name], found, answers, now_s) for name, found in by_alert.items()
    ]
    return sorted(verdicts, key=lambda one: (one.severity, -one.num_unanswered, one.alert))


def _judge(
    alert: str, severity: str, episodes: list[Episode], answers: Sequence[Answer], now_s: float
) -> Verdict:
    own = [answer.at_s for answer in answers if answer.alert == alert]
    unanswered = [one for one in episodes if not _is_answered(one, own, now_s)]
    flapping = _num_flapping(episodes)
    total_s = sum((now_s if one.ended_s is None else one.ended_s) - one.began_s for one in episodes)
    advice = ""
    if flapping >= FLAPS:
        advice = "it flaps: let it last longer before it fires, or set its limit apart"
    elif severity != "P2" and unanswered and len(unanswered) == len(episodes):
        advice = "nobody acted on it: raise its limit, lower its tier, or drop it"
    elif severity != "P2" and unanswered:
        advice = "not always acted on: look at those times"
    return Verdict(
        alert,
        severity,
        len(episodes),
        len(unanswered),
        flapping,
        total_s,
        any(one.ended_s is None for one in episodes),
        advice,
    )


def _is_answered(episode: Episode, answered_s: Iterable[float], now_s: float) -> bool:
    last_s = (now_s if episode.ended_s is None else episode.ended_s) + DAY_S
    return any(episode.began_s <= at_s <= last_s for at_s in answered_s)


def _num_flapping(episodes: Iterable[Episode]) -> int:
    ends: dict[frozenset[tuple[str, str]], float | None] = {}
    num = 0
    for one in sorted(episodes, key=lambda one: one.began_s):
        before = ends.get(one.labels)
        num += before is not None and one.began_s - before <= FLAP_S
        ends[one.labels] = one.ended_s
    return num
