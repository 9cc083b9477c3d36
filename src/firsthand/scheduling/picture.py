"""Who runs and who waits at one moment, and whose blocks are whose, as values.

Owns: `Picture`. May not know: how it is taken, who looks at it.
Read next: `picturing.py`, which takes it; `observe/live.py`, which asks for it.
"""

from __future__ import annotations

from firsthand.values import dataclass

Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Pictured:
    """One sequence. `class_index` is its own class, `level` the one that it has risen to by
    waiting (-1: overdue). `blocks` are runs of ids, first and count, in the order of its tokens."""

    request_id: str
    index: int
    class_index: int
    level: int
    arrival_s: float
    num_prompt_tokens: int
    num_known: int
    num_computed: int
    num_preemptions: int
    blocks: Runs = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """`waiting` in the order in which they would be taken if all tenants had the same, at most
    MAX_PICTURED of them; `cached` blocks are nobody's, but can be found. `shares` are guaranteed
    to the classes: urgent, normal, background."""

    at_s: float
    running: tuple[Pictured, ...]
    waiting: tuple[Pictured, ...]
    cached: Runs
    shares: tuple[int, ...]
