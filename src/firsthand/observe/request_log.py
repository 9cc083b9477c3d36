"""What a server's log says of its requests: how many failed, and when of the day.

Owns: their sums.
May not know: what is made of them.
Read next: `log_lines.py`, how a line is read; `evidence.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from firsthand.errors import InvalidRequest
from firsthand.observe.log_lines import lines_of, parsed
from firsthand.values import dataclass

MAX_LINES = 5_000_000


@dataclass(frozen=True, slots=True)
class LogFacts:
    """`failed_at` counts the requests that failed by the hour of the day (UTC), `days` are those on
    which any came."""

    source: str
    num_requests: int
    num_failed: int
    failed_at: dict[int, int]
    failed_days: int
    days: int


def read_log(path: Path) -> LogFacts:
    """Lines that are no JSON are passed over. Raises InvalidRequest."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return sum_up(str(path), _lines(file))
    except OSError as error:
        raise InvalidRequest("--log", f"{path}: {error.strerror}") from None


def _lines(file: TextIO) -> Iterable[dict[str, Any]]:
    for line in islice(lines_of(file), MAX_LINES):
        found = parsed(line)
        if found is not None:
            yield found


def sum_up(source: str, lines: Iterable[dict[str, Any]]) -> LogFacts:
    hours: Counter[int] = Counter()
    days, failed_days = set(), set()
    num_requests = 0
    for line in lines:
        if line.get("event") != "request":
            continue
        num_requests += 1
        at = _time(line.get("timestamp"))
        if at is None:
            continue
        days.add(at.date())
        status = line.get("status")
        if isinstance(status, int) and status >= 500:
            hours[at.hour] += 1
            failed_days.add(at.date())
    return LogFacts(
        source=source,
        num_requests=num_requests,
        num_failed=hours.total(),
        failed_at=dict(hours.most_common()),
        failed_days=len(failed_days),
        days=len(days),
    )


def _time(given: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(given))
    except ValueError:
        return None
