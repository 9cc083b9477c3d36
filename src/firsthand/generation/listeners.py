"""Those who are told of what happens, and that none of them can harm it.

Owns: the order in which they are told, and the end of one that raises.
May not know: what they are told, and why they listen.
Read next: `service.py`, `llm.py`, which tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class Listeners(Generic[T]):
    """A listener is to be quick. One that raises is told no more: whoever counts and records is
    never a reason for a request to fail. It may leave while it is told."""

    def __init__(self) -> None:
        self._all: tuple[Callable[[T], object], ...] = ()

    def add(self, listener: Callable[[T], object]) -> Callable[[], None]:
        """The result ends it."""
        self._all = (*self._all, listener)

        def end() -> None:
            self._all = tuple(one for one in self._all if one is not listener)

        return end

    def tell(self, value: T) -> None:
        for listener in self._all:
            try:
                listener(value)
            except Exception:
                _LOG.exception("a listener failed, and is told no more: %r", listener)
                self._all = tuple(one for one in self._all if one is not listener)
