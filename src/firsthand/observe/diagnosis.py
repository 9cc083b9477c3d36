"""From what is seen to what is likely wrong, the likeliest first.

Owns: which cause explains which symptom, the ranking, and what is called unknown.
May not know: where numbers are from, how a finding is shown.
Read next: `causes.py` (the tests), `cause_texts.py` (the words).

Every cause that is seen is named, so that two faults at once are two findings. Metrics say that it
is there; the recorder, whose requests it has or has not slowed or ended, raises or lowers it. A
symptom that no seen cause explains is unknown, with its numbers; so is trouble that no entry is
about.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import asdict
from typing import Any

from firsthand.checks import shown
from firsthand.errors import InvalidRequest
from firsthand.observe.cause_texts import TEXTS
from firsthand.observe.causes import TESTS, Seen, answers_by
from firsthand.observe.evidence import Evidence
from firsthand.observe.recorded import weighed
from firsthand.values import dataclass

UNKNOWN = "unknown"
LEAST_REFUSED_SHARE = 0.2  # of replies: so many 4xx are somebody's trouble
_LOSSES = ("engine-lost", "steps-fail", "engine-stalls", "process-gone", "process-hangs")
_WAITS = ("slow-steps", "way-slow", "queue-long", "cache-full", "prompts-longer", "answers-longer")

# Symptoms that are no cause, and what can be behind each.
EXPLAINED_BY = {
    "errors": (*_LOSSES, "weights-wrong", "door-shut", "errors-by-hour", "memory-high"),
    "latency": (*_WAITS, "engine-stalls", "process-hangs", "engine-lost"),
    "check-fails": (*_LOSSES, "weights-wrong", "memory-high", "door-shut"),
    "log-lines": (*_LOSSES, "weights-wrong", "log-lost", "clients-stall", "errors-by-hour"),
}
SYMPTOMS = {
    "latency": (*_WAITS, "latency", "engine-stalls"),
    "memory": ("engine-grows", "server-grows", "memory-high", "cache-full"),
    "errors": ("errors-by-hour", "errors", "door-shut", "log-lines", "disk-full", *_LOSSES),
    "garbled": ("weights-wrong",),
    "hanging": (*_LOSSES, "check-fails", "clients-stall", "way-slow", "queue-long"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause, or a symptom without one. `entry` None: the handbook has none about it."""

    entry: str | None
    cause: str
    weight: float  # 0: not seen
    evidence: tuple[str, ...]
    title: str
    remedy: str
    command: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(e: Evidence, about: str | None = None, language: str = "en") -> list[Finding]:
    """What is seen; of an entry or a symptom, all its causes, the unseen ones last. Raises
    InvalidRequest for an `about` that is neither."""
    meant = _meant(about)
    found_by = {name: test(e) for name, test in TESTS.items()}
    seen = {name: _weighed(name, one, e) for name, one in found_by.items() if one is not None}
    findings = [
        _finding(name, found.weight, found.facts, language)
        for name, found in seen.items()
        if name in meant
    ]
    for name, behind in EXPLAINED_BY.items():
        if name in seen and name in meant and not seen.keys() & set(behind):
            facts = (*seen[name].facts, *_of_requests(e))
            findings.append(_finding(UNKNOWN, 0.6, facts, language))
    if about is None:
        facts = tuple(_without_entry(e, seen))
        if facts:
            findings.append(_finding(UNKNOWN, 0.2, facts, language))
    else:
        findings += [_finding(name, 0.0, (), language) for name in meant if name not in seen]
    return sorted(findings, key=lambda one: -one.weight)


def _weighed(cause: str, seen: Seen, e: Evidence) -> Seen:
    """After a look at what the recorder has of the requests themselves."""
    if e.requests is None:
        return seen
    weight, fact = weighed(cause, seen.weight, e.requests)
    return Seen(weight, seen.facts if fact is None else (*seen.facts, fact))


def _of_requests(e: Evidence) -> tuple[str, ...]:
    return () if e.requests is None else (e.requests.of_time(), *e.requests.of_ends())


def _meant(about: str | None) -> tuple[str, ...]:
    if about is None:
        return tuple(TESTS)
    if about.lower() in SYMPTOMS:
        return SYMPTOMS[about.lower()]
    found = tuple(name for name in TESTS if TEXTS[name].entry == about.upper())
    if not found:
        entries = sorted({text.entry for text in TEXTS.values() if text.entry})
        known = ", ".join((*SYMPTOMS, f"{entries[0]} … {entries[-1]}"))
        raise InvalidRequest("ENTRY", f"{shown(about)} is none of {known}")
    return found


def _finding(name: str, weight: float, facts: tuple[str, ...], language: str) -> Finding:
    text = TEXTS[name]
    title, remedy = text.said(language)
    return Finding(text.entry or None, name, weight, facts, title, remedy, text.command)


def _without_entry(e: Evidence, seen: Container[str]) -> Iterator[str]:
    """Trouble that none of the entries is about; ends of requests that nothing seen explains."""
    bad, whole, texts = answers_by(e, "4")
    if whole and bad / whole > LEAST_REFUSED_SHARE:
        yield f"{bad / whole:.0%} of {whole:.0f} replies are 4xx: {', '.join(texts)}"
    for reason, number in e.by("firsthand_connections_cut", "reason").items():
        if reason != "stalled":
            yield f'firsthand_connections_cut_total{{reason="{reason}"}} +{number:.0f}'
    explained = any(one in seen for one in ("errors", *EXPLAINED_BY["errors"]))
    if e.requests is not None and not explained:
        yield from e.requests.of_ends()
