"""What every queue is: messages that come again until they are acknowledged.

Owns: the protocol.
May not know: any one kind of queue.
Read next: `sqlite.py`, the one that needs no server; `../sources/messages.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Message(NamedTuple):
    """`name` is the same however often it is delivered; `handle` is what acknowledges this
    delivery."""

    name: str
    body: bytes
    handle: Any


class Queue(Protocol):
    """Safe for threads. A message that is neither acknowledged nor extended for `hold_s` comes
    again; so does what its consumer held when it died. Raises EngineUnavailable where the other
    side is gone."""

    @property
    def hold_s(self) -> float: ...

    def receive(self, timeout_s: float) -> list[Message]:
        """A few, in their order; none when nothing came in time."""

    def ack(self, handles: Sequence[Any]) -> None: ...

    def nack(self, handles: Sequence[Any]) -> None:
        """Deliver them again, as soon as the kind of queue can."""

    def extend(self, handles: Sequence[Any]) -> None: ...

    def lag(self) -> int | None:
        """How many are not acknowledged, whoever holds them; None: nobody knows."""

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Names and bodies; when it returns they are as durable as the other side makes them. One
        of a name that is there already may be left out."""

    def close(self) -> None: ...
