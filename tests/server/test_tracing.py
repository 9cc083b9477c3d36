"""Spans of the real server, as a receiver of OTLP gets them; one that is away harms nobody.

Owns: the receiver, which decodes with the models that the protocol publishes.
May not know: how a span is made. Read next: `../observe/test_trace_context.py`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from firsthand.cli.main import run_command
from tests.server.processes import Server, started

pytestmark = [pytest.mark.native, pytest.mark.process]
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
MARK = "zebra-9931"
CHAT = "/v1/chat/completions"


class Received:
    """What was sent so far: spans by name, and the resource of the last export."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.raw = b""
        self.paths: list[str] = []
        self.metrics: ExportMetricsServiceRequest | None = None  # the last ones
        self.lines: list[LogRecord] = []

    def take(self, path: str, body: bytes) -> None:
        self.raw += body
        self.paths.append(path)
        if path == "/v1/metrics":
            self.metrics = ExportMetricsServiceRequest.FromString(body)
            return
        if path == "/v1/logs":
            for one in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.lines += [line for scope in one.scope_logs for line in scope.log_records]
            return
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = plain(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                self.spans += scope.spans

    def trace(self, trace_id: str, num_spans: int = 7) -> list[Span]:
        """Its spans, once there are so many."""
        until = time.monotonic() + 20
        while len(found := [x for x in self.spans if x.trace_id.hex() == trace_id]) < num_spans:
            assert time.monotonic() < until, [one.name for one in self.spans]
            time.sleep(0.02)
        return found


def plain(attributes: Any) -> dict[str, Any]:
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        if kind == "array_value":
            value = [item.string_value for item in value.values]
        found[one.key] = value
    return found


def gen_ai_names() -> set[str]:
    """Those of the conventions."""
    return {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}


@contextmanager
def receiving(status: int = 200) -> Iterator[tuple[Received, str]]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.take(self.path, body)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield received, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory, micro_folder: Path
) -> Iterator[tuple[Server, Received]]:
    folder = tmp_path_factory.mktemp("traced")
    with (
        receiving() as (received, url),
        started(
            folder,
            micro_folder,
            *("--otlp-traces-endpoint", url),
            FIRSTHAND_HOME=str(folder),
            OTEL_BSP_SCHEDULE_DELAY="50",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        ) as server,
    ):
        server.wait_ready()
        yield server, received


def chat(server: Server, headers: dict[str, str], **body: Any) -> httpx.Response:
    sent = {"messages": [{"role": "user", "content": MARK}], "max_tokens": 5, "top_p": 0.5} | body
    url = f"{server.url}/v1/chat/completions"
    return httpx.post(url, json=sent, headers=headers, timeout=30)


def test_s_96_a_span_per_stage_in_the_callers_trace(traced: tuple[Server, Received]) -> None:
    server, received = traced
    headers = {
        "traceparent": f"00-{TRACE}-{PARENT}-01",
        "tracestate": "vendor=1",
        "X-Request-Id": "traced",
    }
    answer = chat(server, headers, stop=[MARK], seed=4)
    spans = {one.name: one for one in received.trace(TRACE)}
    root = spans.pop("chat micro")
    assert root.parent_span_id.hex() == PARENT and root.kind == Span.SPAN_KIND_SERVER
    assert answer.headers["traceparent"] == f"00-{TRACE}-{root.span_id.hex()}-01"
    assert answer.headers["tracestate"] == "vendor=1"
    assert list(spans) == ["receive", "tokenize", "queue", "prefill", "decode", "send"]
    for before, after in zip(spans.values(), list(spans.values())[1:], strict=False):
        assert before.parent_span_id == root.span_id
        assert abs(after.start_time_unix_nano - before.end_time_unix_nano) < 1e6
    whole = root.end_time_unix_nano - root.start_time_unix_nano
    parts = sum(one.end_time_unix_nano - one.start_time_unix_nano for one in spans.values())
    assert parts == pytest.approx(whole, rel=0.01, abs=1e6)
    assert abs(root.end_time_unix_nano - time.time_ns()) < 60e9
    assert [one.name for one in root.events] == ["admitted", "first_token"]
    told = plain(root.attributes)
    assert told == told | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "firsthand",
        "gen_ai.request.model": "micro",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.seed": 4,
        "gen_ai.usage.input_tokens": answer.json()["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": answer.json()["usage"]["completion_tokens"],
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "firsthand.request_id": "traced",
    }
    assert {name for name in told if name.startswith("gen_ai.")} <= gen_ai_names()
    assert received.resource == received.resource | {
        "service.name": "firsthand",
        "deployment.environment.name": "test",
    }
    assert set(received.paths) == {"/v1/traces"}
    (line,) = [one for one in server.events() if one.get("request_id") == "traced"]
    assert (line["trace_id"], line["span_id"]) == (TRACE, root.span_id.hex())
    found = httpx.get(f"{server.url}/firsthand/requests/traced").json()
    assert found["trace_id"] == TRACE
    assert MARK.encode() not in received.raw, "S-74: no text of the request is in a trace"


def test_a_wrong_header_begins_a_trace_and_an_unsampled_one_is_left_alone(
    traced: tuple[Server, Received],
) -> None:
    server, received = traced
    answer = chat(server, {"traceparent": "00-zz-1-01"})
    _, trace_id, _, flags = answer.headers["traceparent"].split("-")
    assert int(flags, 16) & 1 and received.trace(trace_id)
    unsampled = "1" * 32
    answer = chat(server, {"traceparent": f"00-{unsampled}-{PARENT}-00"})
    assert answer.headers["traceparent"].startswith(f"00-{unsampled}-")
    assert answer.headers["traceparent"].endswith("-00")
    refused = chat(server, {"traceparent": f"00-{'2' * 32}-{PARENT}-01"}, temperature=-1)
    assert refused.status_code == 400
    (span, *_) = [x for x in received.trace("2" * 32, 2) if x.parent_span_id.hex() == PARENT]
    assert plain(span.attributes)["http.response.status_code"] == 400
    assert not [one for one in received.spans if one.trace_id.hex() == unsampled]


def test_a_receiver_that_is_away_harms_nobody(tmp_path: Path, micro_folder: Path) -> None:
    """Nor does it hold up the end, or fill the log."""
    with receiving(500) as (_, url):
        pass
    with started(
        tmp_path,
        micro_folder,
        *("--otlp-traces-endpoint", url + "/v1/traces"),
        FIRSTHAND_HOME=str(tmp_path),
        OTEL_BSP_SCHEDULE_DELAY="10",
        OTEL_BSP_MAX_QUEUE_SIZE="8",
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE="4",
    ) as server:
        server.wait_ready()
        for _ in range(20):
            assert chat(server, {}).status_code == 200
        wait_for(lambda: [one for one in server.events() if "opentelemetry" in str(one["module"])])
        lines = [one for one in server.events() if "opentelemetry" in str(one["module"])]
        assert len(lines) < 8, lines
        import signal

        code, took_s = server.end(signal.SIGTERM, 15)
        assert code == 0 and took_s < 8


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_f_72_metrics_under_the_names_of_the_conventions(
    tmp_path: Path, micro_folder: Path
) -> None:
    """Traces, metrics and lines of the log to one receiver, by OpenTelemetry's own variables."""
    with (
        receiving() as (received, url),
        started(
            *(tmp_path, micro_folder, "--threads", "1"),
            FIRSTHAND_HOME=str(tmp_path),
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
            OTEL_METRIC_EXPORT_INTERVAL="200",
            OTEL_BLRP_SCHEDULE_DELAY="50",
            OTEL_BSP_SCHEDULE_DELAY="50",
        ) as server,
    ):
        server.wait_ready()
        chat(server, {})
        wait_for(lambda: {one for one in told_of(received) if one.startswith("gen_ai")} == GEN_AI)
        wait_for(lambda: [x for x in received.lines if x.event_name == "firsthand.request"])
        wait_for(lambda: received.spans)
        found = told_of(received)
    line = next(x for x in received.lines if plain(x.attributes).get("http.route") == CHAT)
    told = plain(line.attributes)
    assert told["http.response.status_code"] == 200 and told["gen_ai.usage.output_tokens"] == 5
    assert told["firsthand.request_id"] and line.severity_text == "info"
    assert line.trace_id in {one.trace_id for one in received.spans}
    for name in GEN_AI:
        (point,) = found[name].histogram.data_points
        told = plain(point.attributes)
        assert told["gen_ai.operation.name"] == "chat" and told["gen_ai.request.model"] == "micro"
        assert {one for one in told if one.startswith("gen_ai.")} <= gen_ai_names()
        assert point.count == 1 and point.sum > 0 and point.explicit_bounds[-1] in (2.5, 10, 81.92)
    routes = {
        plain(point.attributes).get("http.route")
        for point in found["http.server.request.duration"].histogram.data_points
    }
    assert {CHAT, "/readyz"} <= routes
    assert MARK.encode() not in received.raw


GEN_AI = {
    *("gen_ai.server.request.duration", "gen_ai.server.time_to_first_token"),
    "gen_ai.server.time_per_output_token",
}


def told_of(received: Received) -> dict[str, Any]:
    """The metrics of the last export, by their names."""
    if received.metrics is None:
        return {}
    return {
        metric.name: metric
        for of_resource in received.metrics.resource_metrics
        for scope in of_resource.scope_metrics
        for metric in scope.metrics
    }


def test_an_address_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("grpc://localhost:4317", "localhost:4318", "http://"):
        code = run_command(["config", "check", "--otlp-traces-endpoint", wrong, "--json"])
        assert code == 2, wrong
        error = json.loads(capsys.readouterr().out)["error"]
        assert "otlp-traces-endpoint" in error["message"].replace("_", "-")
