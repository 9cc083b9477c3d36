"""A percentile of numbers.

Owns: how it is interpolated. May not know: what is counted. Read next: `loadtest/summary.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies, 0 … 1; between two it is interpolated. 0: of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
