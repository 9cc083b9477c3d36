"""Address space taken once, whose pages come when they are written.

Owns: the bytes.
May not know: who has which of them (`arena.py`).
Read next: `arena.py`.
"""

from __future__ import annotations

import mmap

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class Reservation:
    """`num_bytes` zeros, the first at the start of a page, hence at a multiple of `ALIGNMENT`.

    Reserving is not filling: a page is resident once it was written. Pages are small, where the
    system lets us say so: with huge ones the first write of each would wait while megabytes are
    cleared (docs/experiments.md). Raises MemoryError when the system refuses.
    """

    def __init__(self, num_bytes: int) -> None:
        try:
            self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError):
            raise MemoryError(f"{num_bytes} bytes of address space") from None
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)

    @property
    def num_bytes(self) -> int:
        return len(self._memory)

    def view(self, start: int, length: int) -> memoryview:
        """The bytes themselves, writable; not a copy."""
        return memoryview(self._memory)[start : start + length]

    def move(self, source: int, target: int, length: int) -> None:
        """As if through a copy in between: source and target may overlap."""
        self._memory.move(target, source, length)
