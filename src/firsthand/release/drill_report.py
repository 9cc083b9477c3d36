"""What a drill found: as JSON for the next promotion, as Markdown for people.

Owns: the form of a report, where it lies, which one lets a release be promoted.
May not know: how a drill is carried out.
Read next: `drill.py`, `switching.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from firsthand.canonical import canonical
from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object, read_whole
from firsthand.release.drill_age import DAY_S, age_s
from firsthand.release.record import SHORT, Release
from firsthand.release.store import Store
from firsthand.values import dataclass
from firsthand.weights.places import write_atomically

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    passed: bool
    detail: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """`back_to` is the release to which it returned; ids are those of releases."""

    release: int
    id: str
    back_to: int
    back_to_id: str
    at: str
    findings: tuple[Finding, ...]
    num_requests: int
    num_failed: int
    deploy_s: float | None
    recovery_s: float | None
    seconds: float

    @property
    def passed(self) -> bool:
        return all(one.passed for one in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "findings": [asdict(one) for one in self.findings],
            "passed": self.passed,
        }

    def markdown(self) -> str:
        outcome = "passed" if self.passed else "failed"
        rows = "\n".join(
            f"| {one.check} | {'passed' if one.passed else '**failed**'} | {one.detail} |"
            for one in self.findings
        )
        return (
            f"# Drill of release {self.release}: {outcome}\n\n"
            f"{self.at}: from {self.back_to} ({self.back_to_id[:SHORT]}) to {self.release} "
            f"({self.id[:SHORT]}) and back, under load. {self.num_requests} requests, "
            f"{self.num_failed} failed; deployed in {_s(self.deploy_s)}, back in "
            f"{_s(self.recovery_s)}.\n\n| check | outcome | seen |\n|---|---|---|\n{rows}\n"
        )


def _s(seconds: float | None) -> str:
    return "no time (it did not come to that)" if seconds is None else f"{seconds:.2f} s"


def write_report(store: Store, report: Report) -> None:
    base = store.drills / str(report.release)
    write_atomically(base.with_suffix(".md"), report.markdown().encode())
    write_atomically(base.with_suffix(".json"), canonical(report.to_dict()))
    store.history.add(
        "drill",
        report.release,
        passed=report.passed,
        back_to=report.back_to,
        recovery_s=report.recovery_s,
        failed=[one.check for one in report.findings if not one.passed],
    )


def why_not_drilled(store: Store, release: Release, longest_s: float, now: datetime) -> str | None:
    """Why its last drill, which counts for `longest_s`, does not let it be promoted; None: it does,
    or there is nothing to which a rollback could return."""
    current = store.current()
    if current is None or current == release.number:
        return None
    found = last_drill(store, release)
    if found is None:
        return "it has had no drill"
    if found.get("back_to") != current:
        return f"its last drill was not against release {current}, which is served"
    if found.get("passed") is not True:
        return "its last drill failed"
    return why_old(found, longest_s, now)


def why_old(report: dict[str, Any], longest_s: float, now: datetime) -> str | None:
    """Why a drill does not count any more."""
    passed_s = age_s(report, now)
    if passed_s <= longest_s:
        return None
    days, most = passed_s / DAY_S, longest_s / DAY_S
    return f"its last drill is {days:.1f} days old, and one counts for {most:g}"


def last_drill(store: Store, release: Release) -> dict[str, Any] | None:
    """Its report; None: it has had none."""
    path = store.drills / f"{release.number}.json"
    try:
        found = parse_json_object(read_whole(path, _MAX_BYTES), str(path), 4096)
    except CheckpointError:
        return None
    return found if found.get("id") == release.id else None
