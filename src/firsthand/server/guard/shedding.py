"""What is given up under load, in which order, and when it comes back.

Owns: the ladder. Each step refuses one more kind of optional work, so that the rest is served:
1 log-probabilities, 2 several choices, 3 long answers, 4 the background class.
May not know: queues, memory: pressure comes in as a number, 0 is idle and 1 is full.
Read next: `gate.py`.
"""

from __future__ import annotations

from firsthand.request import Priority
from firsthand.server.guard.work import Work
from firsthand.values import dataclass

UP = (0.5, 0.65, 0.8, 0.9)  # pressure at which each step is taken
DOWN_BELOW = 0.2  # so far below it the step is undone …
DOWN_AFTER_S = 2.0  # … when that has held so long, one step at a time
MAX_LEVEL = len(UP)


@dataclass(slots=True)
class Ladder:
    level: int = 0
    _calm_since_s: float | None = None

    def update(self, pressure: float, now: float) -> int:
        """The level after `pressure` at `now`."""
        wanted = sum(pressure >= limit for limit in UP)
        if wanted >= self.level:
            self.level = wanted
            self._calm_since_s = None
        if self.level == 0 or pressure >= UP[self.level - 1] - DOWN_BELOW:
            self._calm_since_s = None
        elif self._calm_since_s is None:
            self._calm_since_s = now
        elif now - self._calm_since_s >= DOWN_AFTER_S:
            self.level -= 1
            self._calm_since_s = now
        return self.level


def shed_field(work: Work, level: int, long_output_tokens: int) -> str | None:
    """The field for which `work` is refused at this level; None: it is served."""
    if level >= 1 and work.logprobs:
        return "logprobs"
    if level >= 2 and work.n > 1:
        return "n"
    if level >= 3 and work.max_tokens > long_output_tokens:
        return "max_tokens"
    if level >= MAX_LEVEL and work.priority is Priority.BACKGROUND:
        return "priority"
    return None
