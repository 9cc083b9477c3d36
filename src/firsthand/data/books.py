"""The books of a run: what became of everything that was read.

Owns: the counts, and that they balance.
May not know: why a record is refused; where the counts are kept.
Read next: `check.py`, `ledger.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field

from firsthand.data.record import Accepted, Duplicate, Rejected
from firsthand.values import dataclass

Item = Accepted | Rejected | Duplicate


@dataclass(slots=True)
class Books:
    """What became of everything that was read."""

    accepted: int = 0
    quarantined: int = 0
    duplicates: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        return self.accepted + self.quarantined + self.duplicates

    def add(self, item: Item) -> None:
        if isinstance(item, Accepted):
            self.accepted += 1
        elif isinstance(item, Duplicate):
            self.duplicates += 1
        else:
            self.quarantined += 1
            self.reasons[item.reason] += 1

    def include(self, other: Books) -> None:
        """Those of another run, or of another part of this one."""
        self.accepted += other.accepted
        self.quarantined += other.quarantined
        self.duplicates += other.duplicates
        self.reasons += other.reasons

    def count(self, items: Iterable[Item]) -> Iterator[Item]:
        """Items as they are, counted as they pass."""
        for item in items:
            self.add(item)
            yield item
