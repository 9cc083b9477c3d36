"""One long row of units shared out in ranges: first fit, split, merge, compact.

Owns: which range is whose and where it lies; a range's id stays its own when the range moves.
May not know: what a unit is. Over bytes it is a `Reservation` (`reservation.py`) that moves, over
slots of the KV cache a store (`kvcache/regions.py`).
Read next: `reservation.py`.
Seen in: `firsthand lab fragmentation`.

Held ranges and holes cover the row without overlap, and no two holes touch. An allocation takes
the first hole that is long enough and splits it; a freed range becomes one hole with its
neighbours. Only when no hole is long enough though enough is free in total are ranges moved
towards the start, and no more of them than it takes to open one hole. What that costs is counted.
"""

from __future__ import annotations

import threading
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from firsthand.values import dataclass

Move = Callable[[int, int, int], None]  # source, target, length; the two may overlap


class Range(NamedTuple):
    """Units start … start + length − 1."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class ArenaFacts:
    """An arena at one moment; counts are units, those of compactions since the beginning."""

    num_units: int
    num_used: int
    most_used: int
    num_ranges: int
    largest_free: int
    num_compactions: int
    num_moved: int
    compaction_ms: float

    @property
    def num_free(self) -> int:
        return self.num_units - self.num_used

    @property
    def fragmentation(self) -> float:
        """The share of what is free that one allocation cannot have without a compaction."""
        return 1 - self.largest_free / self.num_free if self.num_free else 0.0


class Arena:
    """`num_units` units; every range starts at, and is as long as, a multiple of `granule`.

    `move(source, target, length)` has the content follow its range. It is called with the lock
    held: it must not call back. A move that raises must have moved nothing; the ranges moved
    before it stay where they are now, and the allocation fails with its exception. A range moves
    whole: pages of it that nobody wrote are resident from then on.

    Safe from any thread. A start is true only until the next allocation, unless it is pinned: a
    pinned range is never moved.
    """

    def __init__(
        self, num_units: int, *, granule: int, move: Move, clock: Callable[[], float]
    ) -> None:
        if granule < 1 or num_units < 1 or num_units % granule:
            raise ValueError(f"an arena of {num_units} units cannot be cut in pieces of {granule}")
        self._num_units = num_units
        self._granule = granule
        self._move = move
        self._clock = clock
        self._lock = threading.Lock()
        self._holes = [Range(0, num_units)]  # by start
        self._held: dict[int, Range] = {}
        self._pins: Counter[int] = Counter()
        self._next_id = 0  # never used twice, so that an id of the past is always noticed
        self._num_used = self._most_used = 0
        self._num_compactions = self._num_moved = 0
        self._compaction_s = 0.0

    def allocate(self, num_units: int) -> int | None:
        """The id of a new range of at least that many units; None when there is no room.

        Its content is whatever was there.
        """
        if num_units < 1:
            raise ValueError(f"a range of {num_units} units holds nothing")
        length = self.rounded(num_units)
        with self._lock:
            at = self._first_fit(length)
            if at is None and self._compact(length):
                at = self._first_fit(length)
            if at is None:
                return None
            range_id = self._next_id
            self._next_id += 1
            hole = self._holes[at]
            self._held[range_id] = Range(hole.start, length)
            rest = [Range(hole.start + length, hole.length - length)]
            self._holes[at : at + 1] = rest if hole.length > length else []
            self._num_used += length
            self._most_used = max(self._most_used, self._num_used)
            return range_id

    def free(self, range_id: int) -> None:
        """Give a range back. An id that is not held, or is pinned, is the caller's bug: it raises
        ValueError."""
        with self._lock:
            freed = self._find(range_id)
            if range_id in self._pins:
                raise ValueError(f"range {range_id} is pinned")
            del self._held[range_id]
            self._num_used -= freed.length
            self._add_hole(freed)

    def start(self, range_id: int) -> int:
        """Where the range is now."""
        with self._lock:
            return self._find(range_id).start

    def length(self, range_id: int) -> int:
        with self._lock:
            return self._find(range_id).length

    @contextmanager
    def pinned(self, range_id: int) -> Iterator[Range]:
        """The range, which keeps its place inside the block; may be nested."""
        with self._lock:
            held = self._find(range_id)
            self._pins[range_id] += 1
        try:
            yield held
        finally:
            with self._lock:
                self._pins[range_id] -= 1
                if not self._pins[range_id]:
                    del self._pins[range_id]

    def rounded(self, num_units: int) -> int:
        """How many units an allocation of so many takes."""
        return -(-num_units // self._granule) * self._granule

    def held(self) -> dict[int, Range]:
        """Every held range by its id, in the order of their starts: the map of the arena."""
        with self._lock:
            return dict(self._in_order())

    def facts(self) -> ArenaFacts:
        with self._lock:
            return ArenaFacts(
                num_units=self._num_units,
                num_used=self._num_used,
                most_used=self._most_used,
                num_ranges=len(self._held),
                largest_free=max((hole.length for hole in self._holes), default=0),
                num_compactions=self._num_compactions,
                num_moved=self._num_moved,
                compaction_ms=self._compaction_s * 1e3,
            )

    # ---- with the lock held --------------------------------------------------------------------

    def _find(self, range_id: int) -> Range:
        if range_id not in self._held:
            raise ValueError(f"range {range_id} is not held")
        return self._held[range_id]

    def _in_order(self) -> list[tuple[int, Range]]:
        return sorted(self._held.items(), key=lambda item: item[1])

    def _first_fit(self, length: int) -> int | None:
        return next((i for i, hole in enumerate(self._holes) if hole.length >= length), None)

    def _add_hole(self, hole: Range) -> None:
        at = bisect(self._holes, hole)
        first, last, (start, end) = at, at, (hole.start, hole.end)
        if at > 0 and self._holes[at - 1].end == start:
            first, start = at - 1, self._holes[at - 1].start
        if at < len(self._holes) and self._holes[at].start == end:
            last, end = at + 1, self._holes[at].end
        self._holes[first:last] = [Range(start, end - start)]

    def _compact(self, wanted: int) -> bool:
        """Open one hole of that length, if moving can."""
        moves = self._moves_for(wanted) if self._num_units - self._num_used >= wanted else None
        if moves is None:
            return False
        began_s = self._clock()
        try:
            for range_id, target in moves:
                held = self._held[range_id]
                self._move(held.start, target, held.length)
                self._held[range_id] = Range(target, held.length)
                self._num_moved += held.length
        finally:
            self._num_compactions += 1
            self._compaction_s += self._clock() - began_s
            self._holes = self._gaps()
        return True

    def _moves_for(self, length: int) -> list[tuple[int, int]] | None:
        """Which ranges go where, in order, so that one hole is that long; None: pins forbid it.

        A target lies below its source and above all that was moved before, so each move writes
        only to what is free or its own.
        """
        moves: list[tuple[int, int]] = []
        floor = 0  # below it all is packed
        for range_id, held in self._in_order():
            if held.start - floor >= length:
                return moves
            if range_id in self._pins:  # what was moved up to here would have gained nothing
                moves, floor = [], held.end
                continue
            if held.start > floor:
                moves.append((range_id, floor))
            floor += held.length
        return moves if self._num_units - floor >= length else None

    def _gaps(self) -> list[Range]:
        ends = [0, *(held.end for _, held in self._in_order())]
        starts = [*(held.start for _, held in self._in_order()), self._num_units]
        pairs = zip(ends, starts, strict=True)
        return [Range(end, start - end) for end, start in pairs if start > end]
