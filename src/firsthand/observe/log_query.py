"""Where the errors of a log come from: its lines counted, by module or by another field.

Owns: what counts as an error, how lines are grouped, in one pass and bounded.
May not know: who writes a log, where it lies.
Read next: `log_lines.py`, how one is read; `../server/logs.py`, whose lines these are.

Lines that are no JSON objects, such as the last words of a native fault, are counted and passed
over. A line that is too old is told by its first characters, without being parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from firsthand.observe.log_lines import parsed
from firsthand.values import dataclass

GROUPS = ("module", "event", "endpoint", "model", "outcome", "status", "error", "key_id")
MAX_GROUPS = 1000  # more of them are one, called "others"
_START = '{"timestamp": "'
_TIME_CHARS = len("2026-01-02T03:04:05.678Z")
_ERRORS = frozenset({"error", "critical"})


@dataclass(slots=True)
class Group:
    """The lines of one value. `last_*` are of the last error."""

    name: str
    num_lines: int = 0
    num_errors: int = 0
    last_at: str | None = None
    last_message: str | None = None
    last_request_id: str | None = None

    @property
    def share(self) -> float:
        return self.num_errors / self.num_lines


@dataclass(slots=True)
class Counted:
    groups: list[Group]  # the most errors first
    num_lines: int  # of the time that was asked for
    num_unread: int  # no JSON objects, or too long


def count_errors(lines: Iterable[str], since_s: float, by: str) -> Counted:
    """`since_s` is Unix time; `by` is one of `GROUPS`."""
    groups: dict[str, Group] = {}
    since, num_unread = _written(since_s), 0
    for line in lines:
        if line.startswith(_START) and line[len(_START) :][:_TIME_CHARS] < since:
            continue
        found = parsed(line)
        if found is None:
            num_unread += bool(line.strip())
            continue
        if str(found.get("timestamp", "")) < since:
            continue
        name = _value(found, by)
        if name not in groups and len(groups) >= MAX_GROUPS:
            name = "others"
        group = groups.setdefault(name, Group(name))
        group.num_lines += 1
        if found.get("level") in _ERRORS:
            _add(group, found)
    ordered = sorted(groups.values(), key=lambda one: (-one.num_errors, -one.num_lines, one.name))
    return Counted(ordered, sum(one.num_lines for one in ordered), num_unread)


def _add(group: Group, line: Mapping[str, Any]) -> None:
    group.num_errors += 1
    at = str(line.get("timestamp"))
    if group.last_at is None or at >= group.last_at:
        group.last_at, group.last_message = at, str(line.get("message"))
        request_id = line.get("request_id")
        group.last_request_id = None if request_id is None else str(request_id)


def _value(line: Mapping[str, Any], by: str) -> str:
    value = line.get(by)
    if isinstance(value, Mapping):  # an error
        value = value.get("code") or value.get("type")
    return "-" if value is None else str(value)[:200]


def _written(time_s: float) -> str:
    at = datetime.fromtimestamp(time_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
