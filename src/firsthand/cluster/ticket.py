"""The argument of a call to a replica, while it is here.

Owns: `Ticket`. May not know: Ray, who reads it. Read next: `routing.py`, which does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """The only argument of a call to a replica. `order` is given the names of those that run, and
    gives those that may be tried, the best first; `routed` is told who took it; `heard`, from then
    on, of every change of those that run."""

    payload: bytes
    order: Callable[[Sequence[str]], Sequence[str]]
    routed: Callable[[str], None] = lambda name: None
    heard: Callable[[Sequence[str]], None] | None = None

    def __reduce__(self) -> tuple[Callable[..., bytes], tuple[bytes]]:
        return bytes, (self.payload,)
