"""The end of a call: into the recorder, into a file where it failed, into the log.

Owns: the order of these, that none of them can harm the answer or the next one; whether there is a
tracer.
May not know: how a record is kept or told.
Read next: `guard/middleware.py`, which calls it; `logs.py`, `../observe/recorder.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from importlib.util import find_spec
from typing import Any, Protocol
from urllib.parse import urlsplit

from firsthand.config import otlp_endpoint, read_environment
from firsthand.errors import InvalidRequest
from firsthand.generation.kept_requests import made_by
from firsthand.generation.member import Member
from firsthand.observe.kept_failures import FAILURES, MAX_STEPS, KeptFailures
from firsthand.observe.metrics import Metrics, example_of
from firsthand.observe.record_views import told
from firsthand.observe.recorder import Recorder
from firsthand.observe.records import Ending, Record
from firsthand.observe.trace_context import Headers, TraceContext
from firsthand.server.counting import endpoint_of
from firsthand.server.guard.access import route_path
from firsthand.server.guard.call import Call
from firsthand.server.guard.middleware import GENERATING
from firsthand.server.logs import SentLines, tell, tell_request
from firsthand.server.settings import Settings
from firsthand.values import dataclass
from firsthand.version import VERSION

_LOG = logging.getLogger(__name__)
TRACES_PATH = "/v1/traces"


class Traces(Protocol):
    """A `Tracer`; its module, and the library below, are loaded where traces are wanted."""

    def begin(self, headers: Headers, arrived_s: float) -> TraceContext | None: ...
    def end(
        self, context: TraceContext, record: Record | None, more: Mapping[str, Any], now_s: float
    ) -> None: ...
    def close(self) -> None: ...


class Measures(Protocol):
    """A `Meter`, likewise."""

    def end(self, record: Record | None, exchange: Mapping[str, Any], took_s: float) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ends:
    """Called by the guard at the end of each call."""

    recorder: Recorder
    failures: KeptFailures
    metrics: Metrics
    tracer: Traces | None = None
    meter: Measures | None = None
    lines: SentLines | None = None

    def __call__(
        self, call: Call, scope: MutableMapping[str, Any], status: int, now_s: float
    ) -> None:
        record = None
        try:
            record = self._recorded(call, scope, status, now_s)
        except Exception:
            _LOG.exception("request %s: it could not be recorded", call.request_id)
        if self.tracer is not None and call.trace is not None and call.trace.span is not None:
            try:
                self.tracer.end(call.trace, record, _of_http(scope, status), now_s)
            except Exception:
                _LOG.exception("request %s: its trace could not be told", call.request_id)
        try:
            path, took_s = route_path(scope), now_s - call.arrived_s
            endpoint = path if path in GENERATING else endpoint_of(scope)  # also of one refused
            self.metrics.replied(endpoint, took_s, example_of(call.request_id, call.trace))
            if self.meter is not None:
                self.meter.end(record, _of_http(scope, status), took_s)
        except Exception:
            _LOG.exception("request %s: it could not be counted", call.request_id)
        tell_request(call, scope, status, now_s, record)

    async def know_what_made(self, member: Member) -> None:
        """What the answers of a model depend on, for whoever replays one. Its files are hashed, if
        their hash is not known."""
        options, window = member.entry.service, member.service.model.context_length
        found = await asyncio.to_thread(made_by, options.model, options.load, window)
        self.recorder.made_by[member.service.model.name] = found

    def close(self) -> None:
        """What is not written yet is; it may take a second or two."""
        self.failures.close()
        for one in (self.tracer, self.meter, self.lines):
            if one is not None:
                one.close()

    def _recorded(
        self, call: Call, scope: MutableMapping[str, Any], status: int, now_s: float
    ) -> Record | None:
        """None: it was to generate nothing. What was refused, or is wrong, is kept too, in short:
        whoever asks by its id is told why."""
        path = route_path(scope)
        if call.arrival is None and not (path in GENERATING and status >= 400):
            return None
        ending = Ending(
            status,
            call.outcome or "",
            now_s,
            call.sent_bytes,
            call.first_sent_s,
            call.error_code,
            call.cause,
            call.cascade,
        )
        trace_id = None if call.trace is None else call.trace.trace_id
        arrival = call.arrives(path, call.model or "")
        record = self.recorder.ended(arrival, ending, trace_id)
        call.preemptions = record.num_preemptions
        if ending.is_failure and self.failures.has_room:
            kept = told(record, self.recorder, with_cause=True, max_steps=MAX_STEPS)
            self.failures.keep(call.request_id, time.time_ns(), kept)
        return record


def _of_http(scope: Mapping[str, Any], status: int) -> dict[str, Any]:
    host, port = scope.get("server") or (None, None)
    return {
        "http.request.method": scope["method"],
        "http.route": getattr(scope.get("route"), "path", None),
        "http.response.status_code": status,
        "server.address": host,
        "server.port": port,
    }


def ends_of(settings: Settings, clock: Callable[[], float], metrics: Metrics) -> Ends:
    """Raises InvalidRequest where traces are wanted, and the library for them is not there."""
    recorder = Recorder(settings.recorder_memory, clock, records_content=settings.record_content)
    failures = KeptFailures(read_environment().home / FAILURES)
    tracer = _tracer(settings.otlp_traces_endpoint, clock)
    return Ends(recorder, failures, metrics, tracer, _meter(), _lines())


def _meter() -> Measures | None:
    endpoint = otlp_endpoint("metrics")
    if endpoint is None or not _has_otel():
        return None
    from firsthand.observe.otel_metrics import Meter

    return Meter(endpoint, VERSION)


def _lines() -> SentLines | None:
    endpoint = otlp_endpoint("logs")
    if endpoint is None or not _has_otel():
        return None
    from firsthand.observe.otel_logs import LogSender

    return SentLines(LogSender(endpoint, VERSION))


def _has_otel() -> bool:
    """Without the extra neither is sent; that traces need it is told."""
    return find_spec("opentelemetry.exporter") is not None


def _tracer(wanted: str | None, clock: Callable[[], float]) -> Traces | None:
    endpoint = wanted or otlp_endpoint("traces")
    if endpoint is None:
        return None
    if not urlsplit(endpoint).path.strip("/"):
        endpoint = endpoint.rstrip("/") + TRACES_PATH
    try:
        from firsthand.observe.tracing import Tracer
    except ModuleNotFoundError as missing:
        message = "needs the extra otel: pip install 'firsthand[otel]'"
        if not str(missing.name).startswith("opentelemetry"):
            raise
        if wanted:
            raise InvalidRequest("otlp_traces_endpoint", message) from None
        tell("no_traces", f"OTEL_EXPORTER_OTLP_ENDPOINT {message}", logging.WARNING)
        return None
    return Tracer(endpoint, VERSION, clock)
