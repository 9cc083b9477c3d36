"""What every sink is: outputs in their order, and none of them twice.

Owns: the protocol.
May not know: files, tables, queues; the form of an output.
Read next: `sinks/jsonl.py`.
"""

from __future__ import annotations

from typing import Any, Protocol


class Sink(Protocol):
    """Made by an `open_…` function from the state that was committed last: whatever an earlier run
    wrote beyond it is taken back, or is written again without a second effect."""

    @property
    def name(self) -> str:
        """As lineage calls it."""

    def add(self, identity: bytes, line: bytes) -> tuple[int, int]:
        """An output, as the bytes of one JSON object without a line's end. Where it stands: its
        place, and how many bytes it has there. Raises Flaw: there is no place for it."""

    def flush(self) -> Any:
        """What was added is durable; the state, as a JSON value."""

    def close(self) -> None: ...
