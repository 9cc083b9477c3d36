"""A queue's client that speaks async, asked from code that does not; its faults are ours.

Owns: the client's loop, and what a fault of the client is called.
May not know: any one kind of queue.
Read next: `nats.py` and `rabbitmq.py`, which ask so.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from firsthand.data.loop import Loop
from firsthand.errors import EngineUnavailable

T = TypeVar("T")


class Asking:
    """`name` is that of the queue, `faults` are what the client raises. `connecting` is its first
    work; where that fails, nothing is left behind."""

    def __init__(
        self,
        kind: str,
        name: str,
        faults: tuple[type[Exception], ...],
        connecting: Coroutine[Any, Any, None],
    ) -> None:
        self._called = f"{kind} {name}"
        self._faults: tuple[type[Exception], ...] = (*faults, OSError)
        self._loop = Loop(kind)
        try:
            self.wait(connecting)
        except BaseException:
            self._loop.close()
            raise

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises EngineUnavailable."""
        try:
            return self._loop.wait(work)
        except self._faults as error:
            raise EngineUnavailable(f"{self._called}: {error}") from error

    def each(self, works: Iterable[Coroutine[Any, Any, Any]]) -> None:
        """One after the other. Raises EngineUnavailable."""

        async def every() -> None:
            for work in works:
                await work

        self.wait(every())

    def close(self, closing: Coroutine[Any, Any, None]) -> None:
        """May be called again."""
        if self._loop.is_closed:
            closing.close()
            return
        with suppress(EngineUnavailable):
            self.wait(closing)
        self._loop.close()
