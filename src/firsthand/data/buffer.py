"""A bounded buffer between two threads: one reads ahead, the other takes.

Owns: how far a reader may run ahead, and its thread.
May not know: what a record is.
Read next: `pipeline.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from firsthand.values import dataclass

AHEAD = 512  # records
AT_ONCE = 32
JOIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """No more comes; `fault`: why, if it did not simply end."""

    fault: Exception | None


class Reader:
    """Puts lists of items, then Ended. With `at_once` each item comes as soon as it is there."""

    def __init__(
        self, items: Iterable[Any], put: Callable[[Any], None], *, at_once: bool = False
    ) -> None:
        self._items = items
        self._put = put
        self._size = 1 if at_once else AT_ONCE
        self._room = threading.Semaphore(AHEAD)
        self._closing = False
        self._thread = threading.Thread(target=self._read, name="read", daemon=True)
        self._thread.start()

    def give_room(self) -> None:
        """One item was taken."""
        self._room.release()

    def close(self) -> None:
        self._closing = True
        self._room.release()
        self._thread.join(JOIN_S)

    def _read(self) -> None:
        found: list[Any] = []
        fault: Exception | None = None
        try:
            for item in self._items:
                self._room.acquire()
                if self._closing:
                    return
                found.append(item)
                if len(found) >= self._size:
                    self._put(found)
                    found = []
        except Exception as error:
            fault = error
        if found:
            self._put(found)
        self._put(Ended(fault))
