"""Lines of the log as OpenTelemetry's records, sent where traces go.

Owns: how the fields of a line are called there.
May not know: which lines there are, who writes them.
Read next: `server/logs.py`, whose lines these are; `tracing.py`, whose receiver it shares.

Loaded only where they are wanted: OTEL_EXPORTER_OTLP_ENDPOINT, or the one of logs alone. The
library's own thread sends, by OTEL_BLRP_*; what does not fit into its queue is dropped.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from firsthand.observe.tracing import FLUSH_S, PROVIDER, SCHEMA, resource

SEVERITIES = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}
NAMES = {
    "model": "gen_ai.request.model",
    "method": "http.request.method",
    "endpoint": "http.route",
    "status": "http.response.status_code",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
APART = ("timestamp", "level", "message", "event", "trace_id", "span_id", "error")  # not attributes


class LogSender:
    """`send` takes a line as it is written; `close` sends what is left."""

    def __init__(self, endpoint: str, version: str) -> None:
        self._provider = LoggerProvider(resource(version), shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(endpoint)))
        self._logger = self._provider.get_logger(PROVIDER, version, SCHEMA)

    def send(self, line: Mapping[str, Any], created_s: float) -> None:
        level, event = str(line["level"]), line.get("event")
        record = LogRecord(
            timestamp=round(created_s * 1e9),
            context=_trace_of(line),
            severity_text=level,
            severity_number=SEVERITIES.get(level, SeverityNumber.UNSPECIFIED),
            body=line["message"],
            attributes=dict(_attributes(line)),
            event_name=None if event is None else f"{PROVIDER}.{event}",
        )
        self._logger.emit(record)

    def close(self, limit_s: float = FLUSH_S) -> None:
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(limit_s)


def _attributes(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in line.items():
        if name not in APART and value is not None:
            yield NAMES.get(name, f"{PROVIDER}.{name}"), _plain(value)
    error = line.get("error")
    if isinstance(error, Mapping):
        yield "error.type", str(error.get("code") or error.get("type"))
        if "stack" in error:
            yield "exception.type", str(error.get("type"))
            yield "exception.stacktrace", "\n".join(map(str, error["stack"]))


def _plain(value: Any) -> str | int | float | bool:
    if isinstance(value, str | int | float | bool):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _trace_of(line: Mapping[str, Any]) -> Context:
    """The request's span, as the line names it."""
    trace_id, span_id = line.get("trace_id"), line.get("span_id")
    if not isinstance(trace_id, str) or not isinstance(span_id, str):
        return Context()
    ids = SpanContext(int(trace_id, 16), int(span_id, 16), False, TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(ids), Context())
