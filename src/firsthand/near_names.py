"""Names that are taken for each other: one character apart.

Owns: which two are. May not know: what bears a name. Read next: `server/running.py`, which warns.
Seen in: `firsthand lab near-names`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations


def near_names(names: Iterable[str]) -> list[tuple[str, str]]:
    """Each pair of different names that one character more, less or other makes equal."""
    return [pair for pair in combinations(sorted(set(names)), 2) if _one_apart(*pair)]


def _one_apart(a: str, b: str) -> bool:
    short, long = sorted((a, b), key=len)
    if len(long) - len(short) > 1:
        return False
    at = next((i for i, (x, y) in enumerate(zip(short, long, strict=False)) if x != y), len(short))
    skip = 1 if len(long) == len(short) else 0
    return short[at + skip :] == long[at + 1 :]
