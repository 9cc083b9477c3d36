"""How long ago the way back was tried.

Owns: from when that is counted. May not know: who asks, what is done about it.
Read next: `history.py`; `../server/release_gauges.py`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from firsthand.release.store import Store


def drill_age_s(store: Store, now: datetime) -> float | None:
    """Since the last drill that passed. Without one, since the first promotion that could have been
    rolled back; None: there has been none."""
    drills, promotions = [], []
    for line in store.history.lines():
        if line.get("event") == "drill" and line.get("passed") is True:
            drills.append(line)
        elif line.get("event") == "promote":
            promotions.append(line)
    since = drills[-1:] or promotions[1:2]
    return None if not since else max(0.0, (now - _when(since[0])).total_seconds())


def _when(line: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(str(line["at"]))
