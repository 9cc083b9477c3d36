"""Metrics of requests under the names of OpenTelemetry's conventions, sent where traces go.

Owns: these names, their buckets and attributes.
May not know: HTTP, how a stage is measured. What Prometheus reads is in `catalogue.py`.
Read next: `tracing.py`, whose names and receiver these share; `records.py`.

Loaded only where they are wanted: OTEL_EXPORTER_OTLP_ENDPOINT, or the one of metrics alone. The
library's own thread sends every OTEL_METRIC_EXPORT_INTERVAL; a receiver that is away harms nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from firsthand.observe.records import Record
from firsthand.observe.tracing import FLUSH_S, PROVIDER, SCHEMA, operation_of, resource

DURATION = "gen_ai.server.request.duration"
FIRST_TOKEN = "gen_ai.server.time_to_first_token"
EACH_TOKEN = "gen_ai.server.time_per_output_token"
HTTP = "http.server.request.duration"
BUCKETS: Mapping[str, tuple[float, ...]] = {
    DURATION: tuple(0.01 * 2**power for power in range(14)),
    FIRST_TOKEN: (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
        *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    ),
    EACH_TOKEN: (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    HTTP: (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
}

PLACE = ("server.address", "server.port")


class Meter:
    """`end` is told of each exchange, `close` sends what is left."""

    def __init__(self, endpoint: str, version: str) -> None:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint))
        views = [
            View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(bounds))
            for name, bounds in BUCKETS.items()
        ]
        self._provider = MeterProvider(
            [reader], resource(version), shutdown_on_exit=False, views=views
        )
        meter = self._provider.get_meter(PROVIDER, version, SCHEMA)
        self._of = {name: meter.create_histogram(name, "s") for name in BUCKETS}

    def end(self, record: Record | None, exchange: Mapping[str, Any], took_s: float) -> None:
        """`exchange` are attributes of HTTP, as the server knows them."""
        known = {name: value for name, value in exchange.items() if value is not None}
        served_at = {name: known.pop(name) for name in PLACE if name in known}
        self._of[HTTP].record(took_s, known)
        if record is None:
            return
        arrival, ending = record.arrival, record.ending
        about = {
            "gen_ai.operation.name": operation_of(arrival.endpoint),
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": arrival.model,
            "gen_ai.response.model": arrival.model,
            **served_at,
        }
        if ending is not None and ending.status >= 500:
            about["error.type"] = ending.error_code or ending.outcome
        self._of[DURATION].record(took_s, about)
        for part in record.parts:
            if part.first_token_s is None:
                continue
            self._of[FIRST_TOKEN].record(part.first_token_s - arrival.arrived_s, about)
            num_more = max((one.num_tokens for one in part.choices), default=0) - 1
            if num_more > 0 and part.last_s is not None:
                self._of[EACH_TOKEN].record((part.last_s - part.first_token_s) / num_more, about)

    def close(self, limit_s: float = FLUSH_S) -> None:
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(limit_s)
