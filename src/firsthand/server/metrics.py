"""What is counted, under which names: the first part of the metric catalogue.

Owns: the names, labels and buckets of the service's metrics; how step facts, states and finished
answers become numbers.
May not know: routes, what a step does.
Read next: `aliases.py` (vLLM's names), `counting.py` (requests by status), `../engine/facts.py`.

Base units; no label holds what a caller wrote; `model` is the service's own name for its model,
whichever of its names a caller used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from firsthand.engine.facts import StepFacts
from firsthand.generation.completion import Completion
from firsthand.generation.report import Report
from firsthand.generation.service import Service
from firsthand.server.aliases import VllmAliases

CLASSES = ("urgent", "normal", "background")
LATENCY_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
STEP_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000)


class Metrics:
    """One registry. Others may add their own metrics to `registry`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        r = self.registry
        model = ("model",)
        self.requests = Counter(
            "firsthand_requests", "Requests by outcome", ("endpoint", "status", "finish_reason"),
            registry=r,
        )  # fmt: skip
        self.cancelled = Counter(
            "firsthand_cancelled", "Answers that their client gave up", ("where",), registry=r
        )
        self._running = Gauge("firsthand_requests_running", "Sequences", model, registry=r)
        self._waiting = Gauge(
            "firsthand_requests_waiting", "Sequences", ("model", "class"), registry=r
        )
        self._blocks = Gauge("firsthand_kv_blocks", "By state", ("model", "state"), registry=r)
        self._blocks_used = Gauge(
            "firsthand_kv_blocks_used_ratio", "Used of all", model, registry=r
        )
        self._tokens = Counter(
            "firsthand_tokens", "Of prompts, generated, computed", ("model", "phase"), registry=r
        )
        self._prefix = Counter(
            "firsthand_prefix_cache_tokens", "Of prompts", ("model", "result"), registry=r
        )
        self._preemptions = Counter(
            "firsthand_preemptions", "Sequences put back", ("model", "reason"), registry=r
        )
        self._step = Histogram(
            "firsthand_step_seconds", "By part", ("model", "phase"), registry=r,
            buckets=STEP_BUCKETS_S,
        )  # fmt: skip
        self._batch = Histogram(
            "firsthand_batch_size", "Sequences of a step", model, registry=r, buckets=BATCH_BUCKETS
        )
        self._microbatch, self._microbatch_wait = _microbatches(r)
        self._count_faults(model)
        self._step_age = Gauge(
            "firsthand_last_step_age_seconds", "Since the last step", model, registry=r
        )
        self._restarts = Gauge(
            "firsthand_engine_restarts", "Engines that had to be replaced", model, registry=r
        )
        self._ready = Gauge("firsthand_engine_ready", "1: it takes requests", model, registry=r)
        self._answers = Counter(
            "firsthand_answers", "Sequences that ended", ("model", "finish_reason"), registry=r
        )
        self._ttft = self._latency("firsthand_ttft_seconds", "Call to first token", model)
        self._inter_token = self._latency("firsthand_inter_token_seconds", "Gaps", model)
        self._phase = self._latency(
            "firsthand_request_phase_seconds", "By phase", ("model", "phase")
        )
        self._prompt_tokens = Histogram(
            "firsthand_request_prompt_tokens", "Of a request", model, registry=r,
            buckets=TOKEN_BUCKETS,
        )  # fmt: skip
        self._generated_tokens = Histogram(
            "firsthand_request_generation_tokens", "Of an answer", model, registry=r,
            buckets=TOKEN_BUCKETS,
        )  # fmt: skip
        self._info = Gauge("firsthand_model_info", "1", ("model", "manifest"), registry=r)
        self._build = Gauge("firsthand_build_info", "1", ("version",), registry=r)
        r.register(VllmAliases(r))

    def _count_faults(self, model: tuple[str, ...]) -> None:
        r = self.registry
        self._step_errors = Counter("firsthand_step_errors", "Failed steps", model, registry=r)
        self._step_attempts = Counter(
            "firsthand_step_attempts", "Made after a step had failed", model, registry=r
        )
        self._step_failed = Counter(
            "firsthand_step_failed_sequences", "Given up with their step", model, registry=r
        )
        self._reserve = Gauge(
            "firsthand_memory_reserve", "1: it is held; memory is not short", model, registry=r
        )

    def _latency(self, name: str, text: str, labels: tuple[str, ...]) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=LATENCY_BUCKETS_S)

    def built(self, version: str) -> None:
        self._build.labels(version).set(1)

    def follow(self, service: Service) -> Callable[[], None]:
        """Count the steps of a service from now on; the result ends it."""
        self._info.labels(service.model.name, service.model.manifest_sha256 or "").set(1)
        return service.listen(_StepCounter(self, service.model.name).count)

    def finished(self, service: Service, completion: Completion) -> None:
        """One answer came to its end, good or bad."""
        report, model = completion.report, service.model.name
        self._answers.labels(model, completion.finish_reason).inc()
        self._generated_tokens.labels(model).observe(report.num_tokens)
        if completion.index == 0:  # its request's prompt, once
            self._count_prompt(model, report)
        if not report.num_tokens:
            return
        self._ttft.labels(model).observe(report.ttft_ms / 1e3)
        gaps = self._inter_token.labels(model)
        for gap_ms in report.token_ms:
            gaps.observe(gap_ms / 1e3)
        for phase, spent_ms in (
            ("tokenize", report.tokenize_ms),
            ("queue", report.queue_ms),
            ("prefill", report.prompt_ms),
            ("decode", report.predicted_ms),
            ("total", report.total_ms),
        ):
            self._phase.labels(model, phase).observe(spent_ms / 1e3)

    def _count_prompt(self, model: str, report: Report) -> None:
        self._prompt_tokens.labels(model).observe(report.num_prompt_tokens)
        self._tokens.labels(model, "prompt").inc(report.num_prompt_tokens)
        num_missed = report.num_prompt_tokens - report.num_cached_tokens
        self._prefix.labels(model, "hit").inc(report.num_cached_tokens)
        self._prefix.labels(model, "miss").inc(num_missed)

    def refresh(self, services: Iterable[Service]) -> None:
        """What is asked only when somebody looks."""
        for service in services:
            name, load, state = service.model.name, service.load, service.state
            self._running.labels(name).set(load.num_running)
            for one_class, waiting in zip(CLASSES, load.waiting_by_class, strict=True):
                self._waiting.labels(name, one_class).set(waiting)
            self._blocks.labels(name, "used").set(load.num_used_blocks)
            self._blocks.labels(name, "free").set(load.num_blocks - load.num_used_blocks)
            self._blocks_used.labels(name).set(load.num_used_blocks / max(1, load.num_blocks))
            self._step_age.labels(name).set(state.step_age_s or 0.0)
            self._restarts.labels(name).set(state.num_restarts)
            self._ready.labels(name).set(state.status.takes_requests)
            self._reserve.labels(name).set(not state.memory_short)


def _microbatches(r: CollectorRegistry) -> tuple[Histogram, Histogram]:
    """Of texts that are only scored or pooled: how many started together, how long the oldest of
    them had waited."""
    sizes = Histogram(
        "firsthand_microbatch_size", "Texts of a batch", ("model",), registry=r,
        buckets=BATCH_BUCKETS,
    )  # fmt: skip
    waits = Histogram(
        "firsthand_microbatch_wait_seconds", "Of a batch's oldest", ("model",), registry=r,
        buckets=STEP_BUCKETS_S,
    )  # fmt: skip
    return sizes, waits


class _StepCounter:
    """The labelled children of one model, looked up once: a step is counted in microseconds."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        step: Any = metrics._step
        self._phases = [
            (step.labels(model, name), attribute)
            for name, attribute in (
                ("plan", "plan_ms"),
                ("run", "run_ms"),
                ("forward", "forward_ms"),
                ("sample", "sample_ms"),
                ("commit", "commit_ms"),
            )
        ]
        self._batch = metrics._batch.labels(model)
        self._microbatch = metrics._microbatch.labels(model)
        self._microbatch_wait = metrics._microbatch_wait.labels(model)
        self._computed = metrics._tokens.labels(model, "computed")
        self._generated = metrics._tokens.labels(model, "generation")
        self._preempted = metrics._preemptions.labels(model, "memory")
        self._errors = metrics._step_errors.labels(model)
        self._attempts = metrics._step_attempts.labels(model)
        self._failed = metrics._step_failed.labels(model)

    def count(self, facts: StepFacts) -> None:
        for child, attribute in self._phases:
            child.observe(getattr(facts, attribute) / 1e3)
        self._batch.observe(facts.num_sequences)
        self._computed.inc(facts.num_tokens)
        self._generated.inc(facts.num_drawn)
        for batch in facts.batches:
            self._microbatch.observe(batch.size)
            self._microbatch_wait.observe(batch.wait_s)
        if facts.planned.num_preempted:
            self._preempted.inc(facts.planned.num_preempted)
        if facts.error is not None:
            self._errors.inc()
            self._attempts.inc(facts.num_attempts)
            self._failed.inc(facts.num_failed)
