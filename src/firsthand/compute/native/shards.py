"""Which weights stay in memory and which are swapped, where a model may not lie there whole.

Owns: how a plan is cut into shards, and which of them stay.
May not know: files but for the places of weights in one, limits, when a shard is read.
Read next: `csrc/shards.hpp`, which reads and gives back; `executor.py`.

A shard is a run of operators, about a layer's largest product or as many as come to its size. While
one computes, the next that is swapped is read: so the two largest neighbours of those that are
swapped lie there at a time, beside all that stay. As many stay as the room allows, and they are
spread over the plan: while they compute, the disk has time for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from firsthand.compute.plan import Op
from firsthand.errors import CapacityExceeded
from firsthand.values import dataclass

LEAST_BYTES = 1 << 20  # of a shard, so that a disk reads in long runs
PAGE_BYTES = 4096
PANEL_ROWS = 16  # of an embedding: a row shares its pages with these

Range = tuple[int, int]  # offset in the file, bytes
Places = Mapping[str, Range]  # of each weight


@dataclass(frozen=True, slots=True)
class Shard:
    """Operators `first` … `last`; what is read before they begin, and given back after them.
    Experts are read as a step chooses them, and count whole: a prompt may choose all."""

    first: int
    last: int
    num_bytes: int
    ahead: tuple[Range, ...]
    behind: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """`held_bytes`: of the weights' pages that are in memory at a time, the most."""

    swapped: tuple[Shard, ...]
    num_shards: int
    held_bytes: int

    @property
    def num_swapped(self) -> int:
        return sum(shard.num_bytes > 0 for shard in self.swapped)

    @property
    def step_bytes(self) -> int:
        """What each step reads ahead."""
        return sum(num_bytes for shard in self.swapped for _, num_bytes in shard.ahead)


def choose(ops: Sequence[Op], places: Places, max_tokens: int, room_bytes: int | None) -> Choice:
    """The fewest shards to swap so that the weights' pages fit `room_bytes` (None: all stay).
    Raises CapacityExceeded when not even two of them do."""
    shards = cut(ops, places)
    least = 0
    for count in range(len(shards) + 1):
        swapped = [shards[i * len(shards) // count] for i in range(count)]
        staying = [shard for shard in shards if shard not in swapped]
        embeddings = _embeddings(ops, places, staying) if swapped else []
        least = sum(shard.num_bytes for shard in shards) - _away_bytes(swapped)
        # The rows of a step lie scattered over the table.
        least += sum(min(size, max_tokens * PANEL_ROWS * PAGE_BYTES) for _, (_, size) in embeddings)
        if room_bytes is None or least <= room_bytes:
            tables = [Shard(index, index, 0, (), (place,)) for index, place in embeddings]
            return Choice((*tables, *_parting(swapped, staying)), len(shards), least)
    raise CapacityExceeded(
        f"memory has room for {max(0, room_bytes or 0) / 2**20:,.1f} MiB of weights, and with all "
        f"{len(shards)} shards swapped {least / 2**20:,.1f} MiB are there at a time"
    )


def cut(ops: Sequence[Op], places: Places) -> list[Shard]:
    """Every operator with weights, but embeddings, is in one shard."""
    sizes = [
        0 if op.name == "embed" else sum(places[name][1] for name in dict.fromkeys(op.weights))
        for op in ops
    ]
    most = max([LEAST_BYTES, *(size for op, size in zip(ops, sizes, strict=True) if _is_inner(op))])
    shards: list[Shard] = []
    members: list[int] = []
    for index, size in enumerate(sizes):
        if size == 0:
            continue
        if members and sum(sizes[i] for i in members) + size > most:
            shards.append(_shard(ops, places, members))
            members = []
        members.append(index)
    return [*shards, _shard(ops, places, members)] if members else shards


def _shard(ops: Sequence[Op], places: Places, members: Sequence[int]) -> Shard:
    read = [ops[i] for i in members if ops[i].name != "experts"]
    behind = _ranges([ops[i] for i in members], places)
    num_bytes = sum(-(-size // PAGE_BYTES) * PAGE_BYTES for _, size in behind)
    return Shard(members[0], members[-1], num_bytes, _ranges(read, places), behind)


def _ranges(ops: Sequence[Op], places: Places) -> tuple[Range, ...]:
    return tuple(sorted({places[name] for op in ops for name in op.weights}))


def _away_bytes(swapped: Sequence[Shard]) -> int:
    """What of these is never there at once: all but the two largest neighbours, in a ring."""
    sizes = [shard.num_bytes for shard in swapped]
    if len(sizes) < 2:
        return 0
    return sum(sizes) - max(a + b for a, b in zip(sizes, [*sizes[1:], sizes[0]], strict=True))


def _embeddings(
    ops: Sequence[Op], places: Places, staying: Sequence[Shard]
) -> list[tuple[int, Range]]:
    """Operators that read rows of a table, which go after them; but not a table that stays because
    it is the head's, too."""
    kept = {place for shard in staying for place in shard.behind}
    tables = [(i, places[op.weights[0]]) for i, op in enumerate(ops) if op.name == "embed"]
    return [(index, place) for index, place in tables if place not in kept]


def _parting(swapped: Sequence[Shard], staying: Sequence[Shard]) -> list[Shard]:
    """Without what another shard, that stays, has too."""
    kept = {place for shard in staying for place in shard.behind}
    return [replace(s, behind=tuple(p for p in s.behind if p not in kept)) for s in swapped]


def _is_inner(op: Op) -> bool:
    return op.name not in ("embed", "head")
