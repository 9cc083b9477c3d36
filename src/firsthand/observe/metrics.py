"""What is counted: how step facts, states, and finished answers become numbers.

Owns: what counts for which metric, but for the steps.
May not know: names' forms and buckets (`catalogue.py`), routes, what a step does.
Read next: `step_counts.py`; `../server/counting.py` (requests by status).

Whatever is known elsewhere is asked for at a scrape; only what would be lost is counted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric, ProcessCollector

from firsthand.cascade.decision import REASONS, Told
from firsthand.generation.completion import Completion
from firsthand.generation.report import Report
from firsthand.generation.service import Service
from firsthand.observe.aliases import VllmAliases
from firsthand.observe.instruments import counter, gauge, histogram, read
from firsthand.observe.labels import CLASSES, REQUEST_PHASES
from firsthand.observe.step_counts import StepMetrics
from firsthand.observe.trace_context import TraceContext
from firsthand.processes import processor_s, resident_bytes
from firsthand.request import Request
from firsthand.values import dataclass

Example = dict[str, str]
MOST_EXAMPLE_CHARS = 128  # as OpenMetrics has it


def example_of(request_id: str, trace: TraceContext | None) -> Example:
    """Of a value: whose it is, so that a bar of a histogram leads to a trace, a line of the log, a
    record. OpenMetrics calls it an exemplar; Prometheus' own text has none."""
    found = {} if trace is None else {"trace_id": trace.trace_id}
    num_chars = sum(len(name) + len(value) for name, value in found.items())
    if request_id and num_chars + len("request_id") + len(request_id) <= MOST_EXAMPLE_CHARS:
        found["request_id"] = request_id
    return found


class Metrics:
    """One registry. Others may add their own collectors to `registry`. `vllm`: the same numbers
    stand there under vLLM's names too."""

    def __init__(self, registry: CollectorRegistry | None = None, *, vllm: bool = True) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        r = self.registry
        self.requests = counter("firsthand_requests", r)
        self.cancelled = counter("firsthand_cancelled", r)
        self._answers = counter("firsthand_answers", r)
        self._prompt_tokens = histogram("firsthand_request_prompt_tokens", r)
        self._generated_tokens = histogram("firsthand_request_generation_tokens", r)
        self._ttft = histogram("firsthand_ttft_seconds", r)
        self._inter_token = histogram("firsthand_inter_token_seconds", r)
        self._phase = histogram("firsthand_request_phase_seconds", r)
        self._computed = histogram("firsthand_request_computed_tokens", r)
        self._max_tokens = histogram("firsthand_request_max_tokens", r)
        self._num_answers = histogram("firsthand_request_answers", r)
        self._http = histogram("firsthand_http_request_seconds", r)
        self.loop_lag = histogram("firsthand_event_loop_lag_seconds", r)
        self._cascade_answers = counter("firsthand_cascade_answers", r)
        self._cascade_tokens = counter("firsthand_cascade_tokens", r)
        self._cascade_cost = counter("firsthand_cascade_cost", r)
        self._prefix = counter("firsthand_prefix_cache_tokens", r)
        self._info = gauge("firsthand_model_info", r)
        self._build = gauge("firsthand_build_info", r)
        self._steps = StepMetrics()
        r.register(self._steps)
        self._services: dict[int, Service] = {}
        r.register(_Services(self._services))
        ProcessCollector(registry=r)
        if vllm:
            r.register(VllmAliases(r))

    def built(self, version: str) -> None:
        self._build.labels(version).set(1)

    def follow(self, service: Service) -> Callable[[], None]:
        """Count the steps of a service from now on; the result ends it."""
        self._info.labels(service.model.name, service.model.manifest_sha256 or "").set(1)
        self._services[id(service)] = service
        self._begin(service.model.name)
        return service.listen(self._steps.of(service.model.name).count)

    def succeed(self, old: Service, new: Service) -> None:
        """`new` is served under the name of `old`, whose last steps are still counted."""
        self.leave(old)
        self.follow(new)

    def leave(self, service: Service) -> None:
        """It is not served any more; what was counted of it stays."""
        self._info.remove(service.model.name, service.model.manifest_sha256 or "")
        self._services.pop(id(service), None)

    def _begin(self, model: str) -> None:
        """Whatever has a child per model is there from the start: of a series that begins with its
        first event no increase is seen."""
        for phase in REQUEST_PHASES:
            self._phase.labels(model, phase)
        for metric in (self._ttft, self._inter_token, self._prompt_tokens, self._generated_tokens):
            metric.labels(model)
        for metric in (self._computed, self._max_tokens, self._num_answers):
            metric.labels(model)
        for result in ("hit", "miss"):
            self._prefix.labels(model, result)

    def replied(self, endpoint: str, took_s: float, example: Example) -> None:
        """An HTTP request has ended, whatever it was."""
        self._http.labels(endpoint).observe(took_s, example)

    def finished(
        self,
        service: Service,
        request: Request,
        completion: Completion,
        example: Example | None = None,
    ) -> None:
        """One answer came to its end, good or bad."""
        report, model = completion.report, service.model.name
        self._answers.labels(model, completion.finish_reason).inc()
        self._generated_tokens.labels(model).observe(report.num_tokens)
        if completion.index == 0:  # its request's prompt, once
            self._count_prompt(model, report)
            self._max_tokens.labels(model).observe(request.stop.max_tokens)
            self._num_answers.labels(model).observe(request.n)
        if not report.num_tokens:
            return
        self._ttft.labels(model).observe(report.ttft_ms / 1e3, example)
        gaps = self._inter_token.labels(model)
        for gap_ms in report.token_ms:
            gaps.observe(gap_ms / 1e3)
        decode_ms = report.predicted_ms
        spent_ms = {
            "tokenize": report.tokenize_ms,
            "queue": report.queue_ms,
            "prefill": report.prompt_ms,
            "decode": decode_ms,
            "inference": report.prompt_ms + decode_ms,
            "total": report.total_ms,
        }
        for phase in REQUEST_PHASES:
            self._phase.labels(model, phase).observe(spent_ms[phase] / 1e3, example)

    def begin_cascade(self, name: str) -> None:
        """What it counts is there from the start."""
        for reason in REASONS:
            self._cascade_answers.labels(name, reason)
        for size in ("small", "large"):
            self._cascade_tokens.labels(name, size)
            self._cascade_cost.labels(name, size)

    def cascaded(self, told: Told) -> None:
        """A request to a cascade has ended, whatever became of it."""
        if told.decision is not None:
            self._cascade_answers.labels(told.name, told.decision.reason).inc()
        for size, spent in (("small", told.small), ("large", told.large)):
            if spent is not None:
                num_tokens = spent.prompt_tokens + spent.output_tokens
                self._cascade_tokens.labels(told.name, size).inc(num_tokens)
                self._cascade_cost.labels(told.name, size).inc(spent.cost)

    def _count_prompt(self, model: str, report: Report) -> None:
        self._prompt_tokens.labels(model).observe(report.num_prompt_tokens)
        self._steps.of(model).tokens["prompt"] += report.num_prompt_tokens
        num_missed = report.num_prompt_tokens - report.num_cached_tokens
        self._prefix.labels(model, "hit").inc(report.num_cached_tokens)
        self._prefix.labels(model, "miss").inc(num_missed)
        self._computed.labels(model).observe(num_missed)


@dataclass(frozen=True, slots=True, eq=False)
class _Services:
    """What the services know of themselves, as of now."""

    services: dict[int, Service]

    def collect(self) -> Iterator[Metric]:
        found: dict[str, list[tuple[tuple[str, ...], float]]] = {name: [] for name in _OF_A_SERVICE}
        for service in self.services.values():
            for name, labels, value in _readings(service):
                found[name].append(((service.model.name, *labels), value))
        for name, samples in found.items():
            yield read(name, samples)


_OF_A_SERVICE = (
    *("firsthand_requests_running", "firsthand_requests_waiting", "firsthand_kv_blocks"),
    *("firsthand_kv_blocks_used_ratio", "firsthand_cache_info", "firsthand_memory_reserve"),
    *("firsthand_last_step_age_seconds", "firsthand_engine_ready", "firsthand_engine_restarts"),
    *("firsthand_engine_cpu_seconds", "firsthand_engine_resident_bytes"),
)


def _readings(service: Service) -> Iterator[tuple[str, tuple[str, ...], float]]:
    load, state, model = service.load, service.state, service.model
    yield "firsthand_requests_running", (), load.num_running
    for one_class, waiting in zip(CLASSES, load.waiting_by_class, strict=True):
        yield "firsthand_requests_waiting", (one_class,), waiting
    yield "firsthand_kv_blocks", ("used",), load.num_used_blocks
    yield "firsthand_kv_blocks", ("free",), load.num_blocks - load.num_used_blocks
    yield "firsthand_kv_blocks_used_ratio", (), load.num_used_blocks / max(1, load.num_blocks)
    yield "firsthand_cache_info", (str(model.block_size), str(load.num_blocks)), 1
    yield "firsthand_memory_reserve", (), not state.memory_short
    yield "firsthand_last_step_age_seconds", (), state.step_age_s or 0.0
    yield "firsthand_engine_ready", (), state.status.takes_requests
    yield "firsthand_engine_restarts", (), state.num_restarts
    for name, value in (
        ("firsthand_engine_cpu_seconds", processor_s(state.pid) if state.pid else None),
        ("firsthand_engine_resident_bytes", resident_bytes(state.pid) if state.pid else None),
    ):
        if value is not None:
            yield name, (), value
