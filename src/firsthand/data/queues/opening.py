"""From a job's words to a queue.

Owns: the choice; a client library is loaded when a job names its kind.
May not know: how any of them works.
Read next: `protocol.py`, `sqlite.py`.
"""

from __future__ import annotations

from pathlib import Path

from firsthand.data.job import Place
from firsthand.data.queues.protocol import Queue
from firsthand.errors import InvalidRequest


def open_queue(part: Place, folder: Path) -> Queue:
    """Raises SourceRefused, EngineUnavailable, InvalidRequest."""
    url, name = str(part.url), str(part.name)
    group = getattr(part, "group", "firsthand")
    if part.kind == "queue":
        from firsthand.data.queues.sqlite import SqliteQueue

        if not url.startswith("sqlite:"):
            raise InvalidRequest("url", "of a queue begins with sqlite:")
        return SqliteQueue(folder / url.removeprefix("sqlite:"), name, group)
    raise InvalidRequest("kind", f"{part.kind} is not there")
