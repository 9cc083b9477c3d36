"""How closely an engine's process is watched, and when it is given up.

Owns: the times, and what is hung rather than slow.
May not know: processes, messages.
Read next: `remote.py`, which watches.
"""

from __future__ import annotations

from firsthand.generation.assembly import StepCost
from firsthand.values import dataclass

LONGEST_STEPS = 4.0  # so much more than the longest step takes is no step
IDLE_SHARE = 0.05  # of one processor; less is no work


@dataclass(frozen=True, slots=True)
class Watch:
    """How closely a child is watched, in seconds. A silence of `late_s` is told as degraded."""

    hang_s: float = 5.0
    late_s: float = 2.0
    stall_s: float = 60.0  # with requests and without a step, though the loop turns
    beat_s: float = 0.5
    retry_s: float = 0.25  # before the third start in a row, doubling from there
    max_retry_s: float = 30.0  # while they end before they are ready
    max_return_s: float = 2.0  # once they are: whoever is waiting is kept no longer than that
    stable_s: float = 10.0  # a child that was ready for so long begins no row
    max_dead_starts: int = 8  # in a row without a reason told; then no start in here will help

    def delay_s(self, num_failures: int, was_ready: bool) -> float:
        """Before the next start, after so many children in a row that ended soon. A load that
        fails will fail again for a while; an engine that was ready may well serve the next request.
        """
        if num_failures < 2:
            return 0.0
        longest_s = self.max_return_s if was_ready else self.max_retry_s
        return min(self.retry_s * 2.0 ** min(num_failures - 2, 20), longest_s)


def is_hung(silent_s: float, used_s: float | None, longest: StepCost, limit_s: float) -> bool:
    """Whether a step loop that has been silent for so long, and used so much processor time
    meanwhile, is to be given up.

    After `limit_s` it is, unless it works on a step: it has used processor time, but less than a
    few of the longest steps do. On a machine that others keep busy that can take long, and to end
    it would not make it faster. Where the system does not tell what was used, time decides.
    """
    if silent_s <= limit_s:
        return False
    if used_s is None:
        return silent_s > LONGEST_STEPS * longest.ms * 1e-3
    return used_s < IDLE_SHARE * silent_s or used_s > LONGEST_STEPS * longest.cpu_ms * 1e-3
