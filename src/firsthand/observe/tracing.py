"""Spans of requests, by OpenTelemetry: one per request, one per stage inside.

Owns: the names of spans and attributes, when a trace is sampled, that a receiver which is away
costs nobody anything.
May not know: HTTP, how a stage is measured.
Read next: `records.py` (the stages); `trace_context.py`.

Loaded only where traces are wanted. A span begins at the arrival, so that its ids are known to the
log and to the caller; all else is told at the end, from the record. The library's queue is bounded,
its own thread exports; what does not fit is dropped. Its variables hold: OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_PROPAGATORS, OTEL_BSP_*, OTEL_EXPORTER_OTLP_*.

The names are those of the GenAI semantic conventions as of `SCHEMA`, which are not yet stable: they
stand in this file alone. No text of prompt or answer is among them, nor what a caller named as
stop strings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from firsthand.cascade.decision import Told
from firsthand.observe.records import Part, Record
from firsthand.observe.trace_context import Headers, TraceContext, trace_headers

PROVIDER = "firsthand"
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
}
FLUSH_S = 2.0  # that an ending server waits for a receiver
Attributes = dict[str, Any]


class Tracer:
    """`clock` is that of the records. `close` sends what is left."""

    def __init__(self, endpoint: str, version: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._provider = TracerProvider(resource=resource(version), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer(PROVIDER, version, SCHEMA)

    def begin(self, headers: Headers, arrived_s: float) -> TraceContext | None:
        """None: tracing is switched off by OTEL_SDK_DISABLED, and the caller has no trace."""
        parent = propagate.extract(trace_headers(headers), context=Context())
        span = self._tracer.start_span(
            "request", parent, SpanKind.SERVER, start_time=self._wall_ns(arrived_s)
        )
        ids = span.get_span_context()
        if not ids.is_valid:
            return None
        out: dict[str, str] = {}
        propagate.inject(out, trace.set_span_in_context(span, Context()))
        return TraceContext(f"{ids.trace_id:032x}", f"{ids.span_id:016x}", tuple(out.items()), span)

    def end(
        self, context: TraceContext, record: Record | None, more: Mapping[str, Any], now_s: float
    ) -> None:
        """`more` are attributes of the exchange, as the server knows them."""
        span: Span = context.span
        if span.is_recording():
            span.set_attributes({name: value for name, value in more.items() if value is not None})
            if record is not None:
                self._tell(span, record, now_s)
        span.end(self._wall_ns(now_s))

    def close(self, limit_s: float = FLUSH_S) -> None:
        """The receiver may be away: nobody waits for longer than `limit_s`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(limit_s)

    def _tell(self, span: Span, record: Record, now_s: float) -> None:
        ending = record.ending
        operation = operation_of(record.arrival.endpoint)
        span.update_name(f"{operation} {record.arrival.model}".strip())
        span.set_attributes(dict(_attributes(record, operation)))
        if ending is not None and ending.status >= 500:
            what = ending.error_code or ending.outcome
            span.set_attribute("error.type", what)
            span.set_status(Status(StatusCode.ERROR, ending.outcome))
        inside = trace.set_span_in_context(span, Context())
        for stage in record.stages(now_s):
            child = self._tracer.start_span(
                stage.name, inside, start_time=self._wall_ns(stage.start_s)
            )
            child.end(self._wall_ns(stage.end_s))
        for part in record.parts:
            for name, at_s, about in _events(part):
                span.add_event(name, about, self._wall_ns(at_s))

    def _wall_ns(self, time_s: float) -> int:
        return time.time_ns() - round((self._clock() - time_s) * 1e9)


def operation_of(endpoint: str) -> str:
    return OPERATIONS.get(endpoint, "text_completion")


def resource(version: str) -> Resource:
    """Who sends. The variables of the environment go before."""
    own = Resource({"service.name": PROVIDER, "service.version": version})
    return own.merge(_of_the_environment())


def _of_the_environment() -> Resource:
    """What its variables say; the name of the service that the library would make up is left
    out."""
    found = Resource.create().attributes
    name = str(found.get("service.name", ""))
    made_up = name.startswith("unknown_service")
    return Resource({k: v for k, v in found.items() if k != "service.name" or not made_up})


def _attributes(record: Record, operation: str) -> Iterator[tuple[str, Any]]:
    arrival, ending, parts = record.arrival, record.ending, record.answering
    cascade = None if ending is None else ending.cascade
    answered_by = None if cascade is None else cascade.answered_by
    yield "gen_ai.operation.name", operation
    yield "gen_ai.provider.name", PROVIDER
    yield "gen_ai.request.model", arrival.model
    yield "gen_ai.response.model", answered_by or arrival.model
    yield "firsthand.request_id", arrival.request_id
    if parts:
        first = parts[0]
        yield "gen_ai.request.max_tokens", first.max_tokens
        yield "gen_ai.request.choice.count", first.n
        yield "gen_ai.request.seed", first.seed & (2**63 - 1)  # what an attribute can hold
        yield "gen_ai.request.temperature", first.sampling.temperature
        yield "gen_ai.request.top_p", first.sampling.top_p
        yield "gen_ai.request.top_k", float(first.sampling.top_k)
        yield "gen_ai.request.stream", arrival.streams
        yield "gen_ai.usage.input_tokens", sum(one.num_prompt_tokens for one in parts)
        yield "gen_ai.usage.cache_read.input_tokens", sum(one.num_cached_tokens for one in parts)
        choices = [one for part in parts for one in part.choices]
        yield "gen_ai.usage.output_tokens", sum(one.num_tokens for one in choices)
        yield "gen_ai.response.finish_reasons", [one.reason for one in choices]
        yield "firsthand.priority", first.priority
        if record.replicas:
            yield "firsthand.replicas", record.replicas
        yield "firsthand.queue.ahead", first.num_ahead
        yield "firsthand.preemptions", record.num_preemptions
        if any(one.num_guesses for one in parts):
            yield "firsthand.draft_tokens", sum(one.num_guesses for one in parts)
            yield "firsthand.accepted_tokens", sum(one.num_accepted for one in parts)
    if cascade is not None:
        yield from _of_cascade(cascade)
    if ending is not None and ending.first_sent_s is not None:
        waited_s = ending.first_sent_s - arrival.arrived_s
        yield "gen_ai.response.time_to_first_chunk", waited_s


def _of_cascade(told: Told) -> Iterator[tuple[str, Any]]:
    if told.decision is not None:
        yield "firsthand.cascade.escalated", told.decision.escalated
        yield "firsthand.cascade.reason", told.decision.reason
        yield "firsthand.cascade.threshold", told.decision.threshold
        if told.decision.confidence is not None:
            yield "firsthand.cascade.confidence", told.decision.confidence
    for size, spent in (("small", told.small), ("large", told.large)):
        if spent is not None:
            yield f"firsthand.cascade.{size}.model", spent.model
            yield f"firsthand.cascade.{size}.tokens", spent.prompt_tokens + spent.output_tokens
            yield f"firsthand.cascade.{size}.cost", spent.cost


def _events(part: Part) -> Iterator[tuple[str, float, Attributes]]:
    for at_s, one in part.admissions:
        about: Attributes = {"choice": one.index, "blocks": one.num_blocks}
        name = "resumed" if one.resumed else "admitted"
        yield name, at_s, about | {"reused_tokens": one.num_cached_tokens}
    for at_s, lost in part.preemptions:
        yield "preempted", at_s, {"choice": lost.index, "blocks": lost.num_blocks}
    if part.first_token_s is not None:
        yield "first_token", part.first_token_s, {}
