"""Memory that is held for the moment in which there is none: given up first, taken back last.

Owns: some resident megabytes, and when they go and come.
May not know: what memory is needed for, who is told.
Read next: `machine.py` (what is in use); `generation/child.py`, which looks now and then.

A machine, or a control group, that runs out of memory ends a process without a word. So the
reserve goes before that, at a share in use; and at the first allocation that is refused, where
limits are kept by refusals. Either buys the time in which requests are finished and no more come.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

from firsthand.memory.machine import used_share

RESERVE_BYTES = 8 << 20
GIVE_AT = 0.95  # of the memory in use
TAKE_BELOW = 0.90
TAKE_AFTER_S = 10.0


class Reserve:
    """`used` gives the share of memory in use, None where nothing says so. Not thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float],
        num_bytes: int = RESERVE_BYTES,
        used: Callable[[], float | None] = used_share,
    ) -> None:
        self._clock = clock
        self._num_bytes = num_bytes
        self._used = used
        self._memory: mmap.mmap | None = None
        self._given_s: float | None = None

    @property
    def is_held(self) -> bool:
        return self._memory is not None

    def take(self) -> None:
        """Hold it, every page of it, if there is room."""
        try:
            memory = mmap.mmap(-1, self._num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            return
        for start in range(0, self._num_bytes, mmap.PAGESIZE):
            memory[start] = 1
        self._memory, self._given_s = memory, None

    def give_up(self) -> bool:
        """True: it was there, and its memory is free now."""
        self._given_s = self._clock()
        memory, self._memory = self._memory, None
        if memory is None:
            return False
        memory.close()
        return True

    def look(self) -> None:
        """Give it up or take it back by what is in use."""
        used = self._used()
        if self._memory is not None:
            if used is not None and used >= GIVE_AT:
                self.give_up()
        elif used is None or used < TAKE_BELOW:
            calm_s = TAKE_AFTER_S if self._given_s is None else self._clock() - self._given_s
            if calm_s >= TAKE_AFTER_S:
                self.take()
