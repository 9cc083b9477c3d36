"""The pace of a step loop that somebody watches: paused, step by step, or slowed down.

Owns: when the next step may begin. May not know: what a step does, who asked.
Read next: `child.py`, whose loop asks before each step.
"""

from __future__ import annotations

from dataclasses import field

from firsthand.generation.frames import Pace
from firsthand.values import dataclass


@dataclass(slots=True)
class Pacing:
    """At full pace until told otherwise."""

    pace: Pace = field(default_factory=Pace)
    _num_left: int = 0
    _next_s: float = 0.0

    def take(self, pace: Pace) -> None:
        self.pace, self._num_left = pace, pace.num_steps
        self._next_s = 0.0

    def wait_s(self, now_s: float) -> float | None:
        """Until the next step may begin; 0: now, None: when somebody says so."""
        if self.pace.paused and not self._num_left:
            return None
        return max(0.0, self._next_s - now_s)

    def stepped(self, now_s: float) -> None:
        self._num_left = max(0, self._num_left - 1)
        self._next_s = now_s + self.pace.delay_s
