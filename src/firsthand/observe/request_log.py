"""What a server's log says of its requests: how many failed, and when of the day.

Owns: the reading of the log's lines, bounded, and their sums.
May not know: what is made of them.
Read next: `../server/logs.py`, which writes the lines; `evidence.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

MAX_LINE_BYTES = 1 << 16
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
    events: dict[str, int]  # warnings and errors that are no request


def read_log(path: Path) -> LogFacts:
    """Lines that are no JSON are passed over. Raises InvalidRequest."""
    try:
        with path.open("rb") as file:
            return sum_up(str(path), _lines(file))
    except OSError as error:
        raise InvalidRequest("--log", f"{path}: {error.strerror}") from None


def _lines(file: BinaryIO) -> Iterable[dict[str, Any]]:
    pieces = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(pieces):
        if number >= MAX_LINES:
            return
        if line[:1] != b"{" or len(line) > MAX_LINE_BYTES:
            continue
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def sum_up(source: str, lines: Iterable[dict[str, Any]]) -> LogFacts:
    hours: Counter[int] = Counter()
    events: Counter[str] = Counter()
    days, failed_days = set(), set()
    num_requests = 0
    for line in lines:
        event, level = line.get("event"), line.get("level")
        if event != "request":
            if level in ("warning", "error"):
                events[str(event or "other")[:80]] += 1
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
        events=dict(events.most_common()),
    )


def _time(given: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(given))
    except ValueError:
        return None
