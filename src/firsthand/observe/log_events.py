"""How many warnings and errors the log had, by event: what a watch for words would count.

Owns: the counter. May not know: how a line is written; it never reads a message.
Read next: `../server/logs.py`, whose records carry the event.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry

from firsthand.observe.instruments import counter
from firsthand.observe.labels import LOG_EVENTS, LOG_LEVELS, OTHER_EVENT


class LogEvents(logging.Handler):
    """For the root logger, beside the one that writes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(logging.WARNING)
        lines = counter("firsthand_log_events", registry)
        self._lost = counter("firsthand_log_lines_lost", registry)
        # There from the start: of a counter that begins with its first event no increase is seen.
        self._lines = {
            (event, level): lines.labels(event, level)
            for event in LOG_EVENTS
            for level in LOG_LEVELS
        }

    def lost(self) -> None:
        """A line could not be written."""
        self._lost.inc()

    def emit(self, record: logging.LogRecord) -> None:
        facts = getattr(record, "facts", None)
        event = facts.get("event") if isinstance(facts, dict) else None
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._lines[event if event in LOG_EVENTS else OTHER_EVENT, level].inc()
