"""How long ago the way back was tried, and for how long that counts.

Owns: from when it is counted. May not know: who asks, what is done about it.
Read next: `history.py`; `../server/release_gauges.py`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from firsthand.release.store import Store

DAY_S: Final = 86400.0
LONGEST_S: Final = 30 * DAY_S  # an older drill proves little: the machine is another by then


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
    return None if not since else age_s(since[0], now)


def age_s(line: dict[str, Any], now: datetime) -> float:
    """Of what says `at`: a line of the history, or a drill's report."""
    return max(0.0, (now - datetime.fromisoformat(str(line["at"]))).total_seconds())
