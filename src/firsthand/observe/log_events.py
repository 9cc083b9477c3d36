"""How many lines the log had, by event and level: what a watch for words in a log would count.

Owns: the counter. May not know: how a line is written; it never reads a message.
Read next: `../server/logs.py`, whose records carry the event.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry

from firsthand.observe.instruments import counter

OTHER = "other"
_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info"))


class LogEvents(logging.Handler):
    """For the root logger, beside the one that writes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._lines = counter("firsthand_log_events", registry)

    def emit(self, record: logging.LogRecord) -> None:
        facts = getattr(record, "facts", None)
        event = facts.get("event", OTHER) if isinstance(facts, dict) else OTHER
        level = next((name for least, name in _LEVELS if record.levelno >= least), "debug")
        self._lines.labels(event, level).inc()
