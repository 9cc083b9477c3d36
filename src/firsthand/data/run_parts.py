"""The seams of a run: what it is told, what it asks of its parts, what it tells.

Owns: the protocols of a form and a journal, a place in the window, options and progress.
May not know: any one form, journal or engine.
Read next: `pipeline.py`.
"""

from __future__ import annotations

from typing import Any, Protocol

from firsthand.data.books import Books, Item
from firsthand.data.engines import Reply
from firsthand.data.ledger import Output
from firsthand.data.record import Accepted, Duplicate, Position, Rejected
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    content: bytes


class Journal(Protocol):
    """What survives of a run: a ledger, or one in which held records are replayed. Between two
    commits everything is one transaction."""

    @property
    def books(self) -> Books: ...

    @property
    def position(self) -> Position: ...

    def has_seen(self, digest: bytes) -> bool: ...

    def add_seen(self, digest: bytes) -> None: ...

    def put(self, output: Output) -> None: ...

    def hold(self, rejected: Rejected, identity: bytes) -> None: ...

    def pass_over(self, duplicate: Duplicate) -> None: ...

    def commit(self, position: Position, sink: Any) -> None: ...


class Form(Protocol):
    """What the engine is asked about a record, and what is written of it."""

    def request(self, item: Accepted, identity: bytes) -> Request | None:
        """None: nothing is asked."""

    def line(self, item: Accepted, identity: bytes, sha256: str, reply: Reply | None) -> bytes:
        """One JSON object. Raises Flaw: the reply is none."""

    def refusal(self, item: Accepted, identity: bytes, reply: Reply) -> bytes | None:
        """The line that says that it was refused; None: it goes into quarantine."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A step is durable after so many
    records, or so many seconds. One record of `sample` keeps its values in the ledger; 0: none.
    `patience_s`: how long an engine may take nothing."""

    checkpoint_records: int = 1000
    checkpoint_s: float = 1.0
    sample: int = 1000
    patience_s: float = 120.0
    careful: bool = False  # one at a time, each its own step


@dataclass(frozen=True, slots=True)
class Progress:
    books: Books
    share: float | None
    seconds: float
    num_now: int  # records of this run, without those of an earlier one
    share_now: float | None = None  # of the source, that this run has read

    @property
    def per_second(self) -> float:
        return self.num_now / self.seconds if self.seconds else 0.0

    @property
    def left_s(self) -> float | None:
        if self.share is None or not self.share_now:
            return None
        return self.seconds * (1 - self.share) / self.share_now


@dataclass(slots=True, eq=False)
class Slot:
    """A record in the window. It has ended when it has an outcome."""

    item: Item
    position: Position
    identity: bytes
    sha256: str
    digests: list[bytes]
    waits: bool = False  # for another one of the same key
    request: Request | None = None
    line: bytes | None = None
    ended: bool = False
    tries: int = 0
    due_s: float | None = None  # when it is asked about again
