"""The alerts of the last day, from the record: what fires, and what has ended.

Owns: how much of the record is read, and when it is read again.
May not know: who shows it.
Read next: `received.py`, the record; `server/routes/live.py`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from firsthand.config import read_environment
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.alerts import rules
from firsthand.observe.received import AlertRecord, Notice
from firsthand.observe.review import DAY_S
from firsthand.values import dataclass

MAX_ALERTS = 50
MAX_READ_BYTES = 1 << 20


def usual_record() -> AlertRecord:
    """Where `firsthand alerts receive` keeps them unless told otherwise."""
    return AlertRecord(read_environment().alert_record)


@dataclass(slots=True)
class RecentAlerts:
    """Read again when the file has grown."""

    record: AlertRecord = field(default_factory=usual_record)
    _size: int = -1
    _notices: tuple[Notice, ...] = ()

    def since_yesterday(self, now_s: float) -> list[dict[str, Any]]:
        """The newest first, those that fire before those that have ended. `now_s` is Unix time."""
        size = self.record.size_bytes
        if size != self._size:
            self._size = size
            self._notices = tuple(self.record.read(MAX_READ_BYTES)[0])
        last = {(one.fingerprint, one.began_s): one for one in self._notices}
        found = [one for one in last.values() if one.at_s > now_s - DAY_S]
        found.sort(key=lambda one: (one.ended_s is not None, -one.began_s))
        entries = {rule.name: rule for rule in rules(AlertSettings(gpu_utilization=True))}
        return [
            {
                "alert": one.alert,
                "severity": one.severity,
                "began_s": one.began_s,
                "ended_s": one.ended_s,
                "summary": one.summary,
                "summary_zh": entries[one.alert].summary_zh if one.alert in entries else None,
                "entry": entries[one.alert].entry if one.alert in entries else None,
            }
            for one in found[:MAX_ALERTS]
        ]
