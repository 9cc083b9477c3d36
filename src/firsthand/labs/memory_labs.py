"""Labs of memory: holes that nobody can use, and what a load holds at its peak.

Owns: the pool that is often written, beside ours.
May not know: sequences, models.
Read next: `memory/arena.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from firsthand.labs.charts import Lanes, Span
from firsthand.labs.lab import Evidence, Lab
from firsthand.labs.words import OURS, Text, Words
from firsthand.labs.workbench import Workbench
from firsthand.memory.arena import Arena
from firsthand.memory.reservation import ALIGNMENT, Reservation
from firsthand.values import dataclass

NUM_BYTES = 1 << 20
SMALL, LARGE = 32 << 10, 256 << 10
NUM_ROUNDS = 400


class FirstFit:
    """A list of free blocks: first fit, split, merge of neighbours; nothing moves."""

    def __init__(self, num_bytes: int) -> None:
        self._free = [(0, num_bytes)]
        self.held: dict[int, tuple[int, int]] = {}
        self._next_id = 0

    @property
    def num_free(self) -> int:
        return sum(size for _, size in self._free)

    def allocate(self, size: int) -> int | None:
        for at, (start, length) in enumerate(self._free):
            if length >= size:
                rest = [(start + size, length - size)] if length > size else []
                self._free[at : at + 1] = rest
                self.held[self._next_id] = (start, size)
                self._next_id += 1
                return self._next_id - 1
        return None

    def free(self, range_id: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, size in sorted([*self._free, self.held.pop(range_id)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged


@dataclass(frozen=True, slots=True)
class Traffic:
    """`num_refused` allocations found no hole though so much was free; `spoilt` ranges had not what
    was written into them. `map` is the memory when the first was refused."""

    num_asked: int
    num_refused: int
    spoilt: int
    map: tuple[Span, ...]


def traffic(
    allocate: Callable[[int], int | None],
    free: Callable[[int], None],
    num_free: Callable[[], int],
    held: Callable[[], list[tuple[int, int]]],
    check: Callable[[int, int | None], bool],
) -> Traffic:
    """Ranges of two sizes come and go at random; `check(id, mark)` writes a mark, or with None
    tells whether it is still there."""
    source = Random(1)
    living: list[int] = []
    asked = refused = spoilt = 0
    seen: tuple[Span, ...] | None = None
    for number in range(NUM_ROUNDS):
        size = LARGE if number % 8 == 7 else SMALL
        while num_free() < size:
            gone = living.pop(source.randrange(len(living)))
            spoilt += not check(gone, None)
            free(gone)
        asked += 1
        found = allocate(size)
        if found is None:
            refused += 1
            if seen is None:
                seen = tuple(Span(start, start + length, "#") for start, length in held())
            continue
        check(found, number % 256)
        living.append(found)
    last = tuple(Span(start, start + length, "#") for start, length in held())
    return Traffic(asked, refused, spoilt, last if seen is None else seen)


def by_first_fit() -> Traffic:
    pool = FirstFit(NUM_BYTES)
    return traffic(
        pool.allocate,
        pool.free,
        lambda: pool.num_free,
        lambda: list(pool.held.values()),
        lambda range_id, mark: True,
    )


def by_arena() -> tuple[Traffic, Arena]:
    """Over real bytes, each range filled with a mark that must follow it."""
    memory = Reservation(NUM_BYTES)
    arena = Arena(NUM_BYTES, granule=ALIGNMENT, move=memory.move, clock=time.perf_counter)
    marks: dict[int, int] = {}

    def check(range_id: int, mark: int | None) -> bool:
        with arena.pinned(range_id) as held:
            view = memory.view(held.start, held.length)
            if mark is not None:
                marks[range_id] = mark
                view[:] = bytes([mark]) * held.length
            return bytes(view) == bytes([marks[range_id]]) * held.length

    done = traffic(
        arena.allocate,
        arena.free,
        lambda: arena.facts().num_free,
        lambda: [(one.start, one.length) for one in arena.held().values()],
        check,
    )
    return done, arena


def fragmentation(bench: Workbench) -> Evidence:
    fault = by_first_fit()
    ours, arena = by_arena()
    facts = arena.facts()
    lanes: tuple[tuple[Text, tuple[Span, ...]], ...] = (
        (Words("list of holes, when first refused", "空闲链表，首次被拒时"), fault.map),
        (Words("ours, at the end", "本系统，结束时"), ours.map),
    )
    return Evidence(
        measure=Words(
            "allocations refused though enough was free, of a hundred",
            "每百次分配中，空闲总量足够却被拒绝的次数",
        ),
        fault_shows=100 * fault.num_refused / fault.num_asked,
        ours_does_not=100 * ours.num_refused / ours.num_asked,
        limit=1.0,
        headings=(
            Words("way", "做法"),
            Words("asked", "请求次数"),
            Words("refused", "被拒"),
            Words("compactions", "压缩次数"),
            Words("moved, KiB", "搬移（KiB）"),
            Words("spoilt", "内容损坏"),
        ),
        rows=(
            (Words("list of holes", "空闲链表"), fault.num_asked, fault.num_refused, 0, 0, 0),
            (
                OURS,
                ours.num_asked,
                ours.num_refused,
                facts.num_compactions,
                facts.num_moved / 1024,
                ours.spoilt,
            ),
        ),
        charts=(
            Lanes(Words("Memory: # is held", "内存：# 为已占用"), Words("bytes", "字节"), lanes),
        ),
    )


LABS = (
    Lab(
        name="fragmentation",
        title=Words("Enough is free, and nothing fits", "空闲足够，却放不下"),
        question=Words(
            "Small and large ranges come and go in one block of memory. Is what is free of use?",
            "大小不一的区段在一块内存里来来去去。空闲的部分用得上吗？",
        ),
        run=fragmentation,
        cause=Words(
            "First fit with splitting and merging leaves small holes between long-lived ranges. "
            "Merging helps only where neighbours are free.",
            "首次适配加分割与合并，会在长寿命区段之间留下小空洞。只有相邻都空闲时合并才有用。",
        ),
        cure=Words(
            "Where an allocation fails though enough is free, ranges are moved until one hole is "
            "long enough, and no further. Keys and values live in blocks of one size, any of "
            "which fits, so there is nothing to compact.",
            "当空闲总量足够而分配失败时，才搬移区段，刚好腾出一个够长的空洞为止。"
            "KV 缓存用等长的块，任何一块都合适，因此无需压缩。",
        ),
        places=(
            "firsthand.memory.arena.Arena.allocate",
            "firsthand.memory.reservation.Reservation.move",
            "firsthand.kvcache.blocks.BlockPool",
        ),
        sources=("A §4.3", "B §3.2"),
        seconds=1,
    ),
)
