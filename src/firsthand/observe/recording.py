"""A recording of the live feed: a file that plays again in a terminal or on the page.

Owns: the form of the file, its bounds, at which pace it plays.
May not know: where news come from, how they are drawn.
Read next: `live.py`, which makes the news; `../cli/recording.py`, `../server/recorded.py`.

JSON, a line each: first the form, then the news as a watcher was told them, each with `at_s`, the
engines' clock. No text of prompts or answers is in it, for none is in the feed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from firsthand.errors import InvalidRequest

FORM: Final = {"recording": "firsthand-feed", "version": 1}
MAX_LINE_BYTES: Final = 4 << 20
LONGEST_GAP_S: Final = 5.0  # in which nothing is told


def write(news: Iterable[dict[str, Any]], path: Path, most_bytes: int) -> int:
    """As they come, each at once; their number. It ends when the file would be over `most_bytes`.
    Raises OSError, FileExistsError for a file that is there."""
    with path.open("x", encoding="utf-8") as file:
        num_bytes = file.write(json.dumps(FORM) + "\n")
        number = 0
        for one in news:
            line = json.dumps(one, ensure_ascii=True, separators=(",", ":")) + "\n"
            num_bytes += len(line)
            if num_bytes > most_bytes:
                break
            file.write(line)
            file.flush()
            number += 1
        return number


def read(path: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """Seconds to wait, and the news that come then. Raises InvalidRequest, which names the line."""
    last_s: float | None = None
    try:
        with path.open("rb") as file:
            lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
            for number, line in enumerate(lines, 1):
                found = _object(line, path, number)
                if number == 1:
                    if found != FORM:
                        raise InvalidRequest("recording", f"{path}: is none of ours")
                    continue
                at_s = found.get("at_s")
                if not isinstance(at_s, int | float) or isinstance(at_s, bool):
                    raise InvalidRequest("recording", f"{path}, line {number}: has no time")
                gap_s = 0.0 if last_s is None else min(LONGEST_GAP_S, max(0.0, at_s - last_s))
                last_s = float(at_s)
                yield gap_s, found
    except OSError as error:
        raise InvalidRequest("recording", f"{path}: {error.strerror}") from None


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest("recording", f"{path}, line {number}: over {MAX_LINE_BYTES} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest("recording", f"{path}, line {number}: is no JSON object")
    return found
