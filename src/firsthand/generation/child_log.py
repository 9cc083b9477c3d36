"""What the engine's process has to say, as lines of the service's own log.

Owns: that its records come out in the same stream and the same form as all others, without the text
of a fault, which may quote a request.
May not know: how a line is written (the parent's handlers do that), sockets.
Read next: `frames.py` (`Logged`), `child.py`, which sends; `remote.py`, which gives them out.

The last words of a fault in native code come past this: they are text on the error stream.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque

from firsthand.generation.frames import Logged

MAX_LINES = 100  # that wait for the next turn of the loop; the oldest go
MAX_CHARS = 2000
MAX_FRAMES = 20


class Lines(logging.Handler):
    """For the root logger of the child. Any thread may write; the loop takes."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[Logged] = deque(maxlen=MAX_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:
            message = str(record.msg)
        fault = record.exc_info[1] if record.exc_info else None
        kind = "" if fault is None else type(fault).__name__
        frames = frames_of(fault)
        self._lines.append(Logged(record.levelno, record.name, message[:MAX_CHARS], kind, frames))

    def take(self) -> list[Logged]:
        found: list[Logged] = []
        while self._lines:
            found.append(self._lines.popleft())
        return found


def frames_of(fault: BaseException | None) -> tuple[str, ...]:
    """Where it happened, the innermost last. Not its text."""
    if fault is None:
        return ()
    found = traceback.extract_tb(fault.__traceback__)[-MAX_FRAMES:]
    return tuple(f"{one.filename.rsplit('/', 1)[-1]}:{one.lineno} {one.name}" for one in found)


def give_out(line: Logged) -> None:
    """In the parent: to whoever writes its log. `facts` is where that looks for more fields."""
    logger = logging.getLogger(line.module)
    if not logger.isEnabledFor(line.level):
        return
    record = logger.makeRecord(line.module, line.level, "", 0, line.message, (), None)
    if line.fault:
        vars(record)["facts"] = {"error": {"type": line.fault, "stack": list(line.stack)}}
    logger.handle(record)
