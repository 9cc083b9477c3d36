"""Several models under one limit: who leaves when another is to be loaded.

Owns: the rule, as arithmetic over what each model needs.
May not know: models, processes, clocks: times come in as arguments.
Read next: `generation/registry.py`, which carries it out.

The least recently used leaves first. One that is in use never does, nor one that is pinned, nor one
that was loaded only just now: two models that are asked for in turns would otherwise do nothing but
load. Nobody leaves unless that makes room enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that is loaded, or being loaded. Times are of one clock, in seconds."""

    name: str
    need_bytes: int
    since_s: float  # when it was loaded
    used_s: float  # when it was last asked
    in_use: bool
    pinned: bool = False


def make_room(
    residents: Sequence[Resident],
    need_bytes: int,
    limit_bytes: int | None,
    now_s: float,
    min_stay_s: float,
) -> tuple[str, ...] | None:
    """Who leaves for a model of `need_bytes`, nobody where there is room as it is; None: there
    cannot be any now. `limit_bytes` None: no limit."""
    if limit_bytes is None:
        return ()
    missing = sum(one.need_bytes for one in residents) + need_bytes - limit_bytes
    free = [
        one
        for one in residents
        if not one.in_use and not one.pinned and now_s >= one.since_s + min_stay_s
    ]
    if missing > sum(one.need_bytes for one in free):
        return None
    return _least_recent(free, missing)


def _least_recent(free: Sequence[Resident], missing: int) -> tuple[str, ...]:
    """As many as it takes, and of these none that could stay after all."""
    chosen: list[Resident] = []
    for one in sorted(free, key=lambda one: one.used_s):
        if missing <= 0:
            break
        chosen.append(one)
        missing -= one.need_bytes
    for one in reversed(chosen[:]):
        if missing + one.need_bytes <= 0:
            chosen.remove(one)
            missing += one.need_bytes
    return tuple(one.name for one in chosen)
