"""A line of a log, read: a JSON object, or none of ours.

Owns: how long a line may be. May not know: what stands in it.
Read next: `../server/logs.py`, which writes them; `log_query.py` and `request_log.py`, which count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, TextIO

MAX_LINE_CHARS: Final = 1 << 20


def lines_of(stream: TextIO) -> Iterator[str]:
    """A line that is too long comes in pieces, none of which is JSON."""
    while line := stream.readline(MAX_LINE_CHARS + 1):
        yield line


def parsed(line: str) -> dict[str, Any] | None:
    if len(line) > MAX_LINE_CHARS:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
