"""How fast requests end, measured while there are any: what `Retry-After` is computed from.

Owns: the measurement. May not know: clocks (time is an argument), queues, headers.
Read next: `queue.py`.

Counts that fade with the time that the server was busy: an idle hour says nothing of how fast it
is, and an hour ago says little of now.
"""

from __future__ import annotations

import math

from firsthand.values import dataclass

MEMORY_S = 15.0  # busy time after which a count has faded to 1/e
LEAST_BUSY_S = 0.2  # before that there is no rate yet


@dataclass(slots=True)
class Fading:
    """A count of which 1/e is left after `memory_s`."""

    memory_s: float
    count: float = 0.0
    _at_s: float | None = None

    def pass_time(self, now: float) -> None:
        passed = 0.0 if self._at_s is None else max(0.0, now - self._at_s)
        self._at_s = now
        self.count *= math.exp(-passed / self.memory_s)

    def add(self, number: float) -> None:
        self.count += number


@dataclass(slots=True)
class DrainRate:
    """Places that become free per second of busy time."""

    _ended: float = 0.0
    _busy_s: float = 0.0
    _at_s: float | None = None

    def pass_time(self, now: float, busy: bool) -> None:
        """Until `now` the server was busy, or not."""
        passed = 0.0 if self._at_s is None else max(0.0, now - self._at_s)
        self._at_s = now
        if busy and passed > 0:
            kept = math.exp(-passed / MEMORY_S)
            self._ended *= kept
            self._busy_s = self._busy_s * kept + MEMORY_S * (1.0 - kept)

    def note(self, num_places: int) -> None:
        self._ended += num_places

    @property
    def per_second(self) -> float | None:
        """None before anything has been measured."""
        if self._busy_s < LEAST_BUSY_S or self._ended <= 0:
            return None
        return self._ended / self._busy_s
