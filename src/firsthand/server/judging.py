"""The old and the new one compared, on what their callers saw.

Owns: what is counted of each, and what is bad enough. May not know: who gets which.
Read next: `canary.py`.

Both get the same kind of requests at the same time, so a slow machine or a broken proxy is seen in
both. What is refused as wrong (4xx), and whoever left (499), says nothing about a release.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from statistics import median
from typing import Final

from firsthand.values import dataclass

MIN_ERRORS: Final = 3
ERROR_MARGIN: Final = 0.02  # more of its answers are errors than of the old one's
MIN_ANSWERS: Final = 30  # of each, before their latencies are compared
LATENCY_RATIO: Final = 1.5  # of the medians
LATENCY_FLOOR_MS: Final = 5.0  # less is noise, whatever the ratio
NUM_KEPT: Final = 500  # answers whose latencies are compared: the last ones


@dataclass(slots=True)
class Arm:
    """What came of the requests of one of them."""

    num_answers: int = 0
    num_errors: int = 0
    ttft_ms: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_KEPT))
    itl_ms: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_KEPT))

    def add(self, status: int, ttft_ms: float | None, itl_ms: float | None) -> None:
        if 400 <= status < 500:
            return
        self.num_answers += 1
        self.num_errors += status >= 500
        if ttft_ms is not None:
            self.ttft_ms.append(ttft_ms)
        if itl_ms is not None:
            self.itl_ms.append(itl_ms)

    @property
    def error_ratio(self) -> float:
        return self.num_errors / self.num_answers if self.num_answers else 0.0


def why_back(arms: Mapping[str, Arm]) -> tuple[str, str] | None:
    """The reason in one word and in words; None: nothing speaks against the new one."""
    old, new = arms["old"], arms["new"]
    if new.num_errors >= MIN_ERRORS and new.error_ratio > old.error_ratio + ERROR_MARGIN:
        ratios = f"{new.error_ratio:.1%} of its answers are errors, {old.error_ratio:.1%} before"
        return "errors", ratios
    for what, was, now in (
        ("first token", old.ttft_ms, new.ttft_ms),
        ("time between tokens", old.itl_ms, new.itl_ms),
    ):
        if min(len(was), len(now)) < MIN_ANSWERS:
            continue
        before_ms, after_ms = median(was), median(now)
        if after_ms > before_ms * LATENCY_RATIO + LATENCY_FLOOR_MS:
            return "latency", f"{what}: {after_ms:.0f} ms, {before_ms:.0f} ms before"
    return None
