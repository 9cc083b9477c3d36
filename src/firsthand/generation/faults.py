"""Faults that can be put into an engine on purpose: which there are, and how much of each.

Owns: their names, amounts, limits.
May not know: how an engine is made to have one (`disturbance.py`); servers.
Read next: `disturbance.py`; `../server/chaos.py`, which asks for them.

Each lasts for a time that is given with it, and ends by itself; another of the same name takes its
place. With the process they end too.
"""

from __future__ import annotations

from firsthand.checks import check_choice, check_number
from firsthand.values import dataclass

LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """`unit` is what its amount counts; empty: it has none."""

    name: str
    about: str
    unit: str = ""
    amount: float = 0.0
    least: float = 0.0
    most: float = 0.0
    seconds: float = 60.0

    def checked(self, seconds: float | None, amount: float | None) -> tuple[float, float]:
        """Both, or the defaults. Raises InvalidRequest."""
        seconds = self.seconds if seconds is None else seconds
        amount = self.amount if amount is None else amount
        check_number("seconds", seconds, 0, LONGEST_S)
        check_number(self.unit or "amount", amount, self.least, self.most)
        return float(seconds), float(amount)


IN_ENGINE = (
    FaultKind("slow", "each step takes longer", "ms", 200, 1, 60_000),
    FaultKind("fail", "so many of the steps fail", "share", 1, 0.01, 1),
    FaultKind("stall", "no step is made, though the loop turns"),
    FaultKind("memory", "the engine takes more and more memory", "mib", 256, 1, 1 << 20),
    FaultKind("cache", "so much of the KV cache is taken", "share", 0.9, 0.01, 1),
    FaultKind("corrupt", "pages of a weight hold other bytes"),
)
UPSTREAM = FaultKind(
    "upstream", "what is asked of the engine arrives late, later and later", "ms", 3000, 1, 60_000
)


def engine_fault(name: str) -> FaultKind:
    """Raises InvalidRequest."""
    check_choice("fault", name, [kind.name for kind in IN_ENGINE])
    return next(kind for kind in IN_ENGINE if kind.name == name)
