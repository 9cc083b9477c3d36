"""What a server gives out is the catalogue: nothing beside it, nothing of it never seen to move.

Owns: one server over a service that does everything that is counted. May not know: buckets.
Read next: `test_catalogue.py`.
"""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from firsthand.cascade.decision import REASONS, Decision, Spent, Told
from firsthand.engine.facts import BatchFacts, GuessFacts, StepFacts
from firsthand.generation.member import Member
from firsthand.generation.service import Load, ServiceState, Status
from firsthand.generation.service_values import Replica, Replicas
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.entry import Entry
from firsthand.observe.gpus import Gpus, find_gpus
from firsthand.observe.instruments import counter
from firsthand.observe.labels import CANARY_REASON, OUTCOMES
from firsthand.observe.log_events import LogEvents
from firsthand.observe.metrics import Metrics, example_of
from firsthand.observe.records import Arrival
from firsthand.observe.step_counts import StepCounts
from firsthand.observe.trace_context import TraceContext
from firsthand.release.record import Release
from firsthand.request import FinishReason, Request, SamplingParams, StopRules
from firsthand.scheduling.facts import PlanFacts, Preempted
from firsthand.server.canary import Canary
from firsthand.server.configured import Configured
from firsthand.server.guard.call import Call, Caller
from firsthand.server.guard.queue import Bounds
from firsthand.server.guard.refusal import Refused
from firsthand.server.guard.work import Work
from firsthand.server.model_entries import ModelEntry
from firsthand.server.running import Serving, around, assemble
from firsthand.server.settings import Settings
from firsthand.version import VERSION
from firsthand.weights.places import write_atomically
from tests.server.fakes import FakeService, registry_of

KEY = "test-key-0123456789"
SECRET = "zebra-9931"
TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
SOURCE = Path(__file__).resolve().parents[2] / "src"


class BusyService(FakeService):
    """A service to which everything has happened that is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Callable[[StepFacts], None]] = []
        self._times_s = count(0.0, 0.5)

    @property
    def state(self) -> ServiceState:
        replicas = Replicas((Replica(0, "a", True, 2, 1, 1, 5, 1, 0.5),), num_moved=1, num_lost=1)
        return ServiceState(Status.READY, "", 1.0, 0.1, 0.1, 2, os.getpid(), replicas=replicas)

    def clock(self) -> float:
        return next(self._times_s)

    @property
    def load(self) -> Load:
        return Load(6, 3, 2, (1, 1, 1), (0, 1, 1), 5, 32, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)

    def listen(self, listener: Callable[[StepFacts], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: None


def step(**more: Any) -> StepFacts:
    """A step of 5 tokens in two sequences, one of which is drawn for."""
    plan = PlanFacts(
        preempted=(Preempted("a", 0, 1, 9),), num_recomputed=2, served_by_class=(1, 3, 1)
    )
    values: dict[str, Any] = {
        "started_s": 0.0,
        "request_ids": ("a", "b"),
        "slice_tokens": (4, 1),
        "num_drawn": 1,
        "num_finished": 0,
        "num_waiting": 0,
        "num_running": 2,
        "num_used_blocks": 5,
        "plan_ms": 0.1,
        "run_ms": 5.0,
        "forward_ms": 4.0,
        "sample_ms": 1.0,
        "commit_ms": 0.1,
        "planned": plan,
    }
    return StepFacts(**(values | more))


def nvml(**more: Any) -> Any:
    """Two devices, as the driver's library tells of them."""
    return SimpleNamespace(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=3 << 30, total=8 << 30),
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=25, memory=1),
        nvmlDeviceGetPowerUsage=lambda device: 210_500,
        NVMLError=OSError,
        **more,
    )


def release_beside(running: Serving, member: Member) -> None:
    """What is served lies in a store whose way back was drilled a day ago; another has a share."""
    release = Release(1, "micro", "0" * 64, {}, None, VERSION, "", None, "")
    folder = running.ends.failures.folder / "store" / "releases" / "1"
    write_atomically(folder / "release.json", release.content())
    drill = {"at": "2026-01-01T00:00:00Z", "event": "drill", "release": 1, "passed": True}
    write_atomically(folder.parents[1] / "history.jsonl", json.dumps(drill).encode() + b"\n")
    model = replace(member.entry.service, model=str(folder / "model"))
    member.entry = replace(member.entry, service=model)
    running.canaries.begin(Canary(member, member, release, 0.5, "request", None))
    for reason in CANARY_REASON.values:
        running.canaries.num_returned["micro", reason] = 1


async def exercise(running: Serving) -> None:
    """Everything that is counted happens once or more."""
    member = running.registry.members[0]
    member.resident, member.num_loads, member.load_s, member.need_bytes = True, 1, 0.5, 1 << 20
    for listener in member.service.listeners:  # type: ignore[attr-defined]
        listener(step())
        listener(step(error="it broke", num_attempts=2, num_failed=1))
        listener(step(batches=(BatchFacts(2, 0.01),)))
        listener(step(guesses=(GuessFacts("a", 4, 3),)))
    selfcheck = running.lifecycle.selfchecks["micro"]
    selfcheck.looked_up, selfcheck.right, selfcheck.num_wrong = True, True, 1
    running.peers.num_timed_out = running.peers.num_malformed = running.peers.num_stalled = 1
    running.peers.connections.add(object())  # type: ignore[arg-type]
    lines = LogEvents(running.metrics.registry)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        lines.handle(logging.LogRecord("x", level, "", 0, SECRET, (), None))
    lines.lost()
    release_beside(running, member)
    head = {"authorization": f"Bearer {KEY}", "idempotency-key": '"once"'}
    transport = httpx.ASGITransport(app=around(running), raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=head
    ) as client:
        body = {"prompt": SECRET, "n": 2}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        await client.get(f"/any/{SECRET}")
    for where in ("client", "request"):
        running.metrics.cancelled.labels(where).inc()
    running.metrics.loop_lag.observe(0.01)
    waits = Request("waits", (1,), SamplingParams(), StopRules(8), 0)
    for reason in REASONS:
        spent = Spent("micro", 3, 4, 5)
        running.metrics.cascaded(Told("quick", Decision(reason, 0.8), spent, spent))
    arrival = Arrival("waits", "", "/v1/completions", "micro", 0.0)
    running.ends.recorder.submitted(arrival, "micro", waits, 0.0, 0.0)
    gate, call = running.gate, Call("id", Caller(), 0.0)
    gate.set_bounds(Bounds(max_running=1, max_waiting=16), "micro")
    tickets = [gate.admit(call, [Work(1, 1)], "micro") for _ in range(3)]
    tickets[0][0].close()
    gate.memory_used = 0.93
    for _ in range(3):
        gate.tick()
    with pytest.raises(Refused):
        gate.admit(call, [Work(1, 1, n=16)], "micro")


@pytest.fixture(scope="module")
def text() -> str:
    """What a scrape gives, after all of it."""
    service = BusyService()
    settings = Settings(model=(ModelEntry("micro"),), api_key=(KEY,))
    configured = Configured(settings, {})

    async def run() -> str:
        running = assemble(
            configured, lambda: configured, registry_of(service), 0.0, asyncio.Event()
        )
        running.metrics.registry.register(Gpus(nvml()))
        await exercise(running)
        return generate_latest(running.metrics.registry).decode()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def exposed(text: str) -> dict[str, Metric]:
    found = {metric.name: metric for metric in text_string_to_metric_families(text)}
    return {name: one for name, one in found.items() if not name.endswith("_created")}


def test_a_server_gives_out_the_catalogue_and_nothing_else(exposed: dict[str, Metric]) -> None:
    assert {name for name in exposed if not name.startswith("vllm:")} == set(CATALOGUE)
    aliases = {one.name for entry in CATALOGUE.values() for one in entry.aliases}
    assert {name for name in exposed if name.startswith("vllm:")} == aliases


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE)
def test_each_metric_moves_and_has_the_labels_that_it_says(
    entry: Entry, exposed: dict[str, Metric]
) -> None:
    metric = exposed[entry.name]
    assert metric.type == entry.kind
    assert any(sample.value for sample in metric.samples), f"{entry.name} was never seen to move"
    for sample in metric.samples:
        assert set(sample.labels) - {"le"} == set(entry.label_names)
        for label in entry.labels:
            assert not label.values or sample.labels[label.name] in label.values
    for label in entry.labels:  # each value was seen, too
        assert set(label.values) - _RARE <= {sample.labels[label.name] for sample in metric.samples}


# Reasons of an end that this server's one answer did not have.
_RARE = {"", *OUTCOMES, *(reason.value for reason in FinishReason)}


def test_the_words_for_what_came_between_are_in_the_catalogue() -> None:
    """`invalid` is the caller's, and its requests are counted by their status alone."""
    found = {"invalid"}
    for path in (SOURCE / "firsthand/server").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'note_outcome\(\w+(?:\.scope)?, "(\w+)"', text))
        found |= set(re.findall(r'outcome="(\w+)"', text))
    ending = (SOURCE / "firsthand/server/errors.py").read_text(encoding="utf-8")
    found |= set(re.findall(r'return "(\w+)"$', ending.split("def ending_of")[1], re.MULTILINE))
    assert found == {"invalid", "client_closed", *OUTCOMES}


def test_obs_4_no_label_holds_what_a_caller_wrote(text: str) -> None:
    assert SECRET not in text
    assert KEY not in text


def test_vllms_names_can_be_switched_off() -> None:
    metrics = Metrics(vllm=False)
    metrics.follow(BusyService())
    assert b"vllm:" not in generate_latest(metrics.registry)
    assert b"vllm:" in generate_latest(_followed().registry)


def _followed() -> Metrics:
    metrics = Metrics()
    metrics.follow(BusyService())
    return metrics


def test_vllms_cache_info_has_its_sizes_as_labels() -> None:
    """What the Gateway API's extension for inference reads."""
    line = (
        'vllm:cache_config_info{block_size="16",engine="0",model_name="micro",num_gpu_blocks="32"}'
    )
    assert line in generate_latest(_followed().registry).decode()


read_openmetrics: Any = openmetrics.text_string_to_metric_families


def test_the_other_form_of_a_scrape_parses_too() -> None:
    metrics = _followed()
    encode, kind = choose_encoder("application/openmetrics-text")
    assert kind.startswith("application/openmetrics-text")
    families = list(read_openmetrics(encode(metrics.registry).decode()))
    assert {"firsthand_tokens", "vllm:num_requests_running"} <= {one.name for one in families}


def test_a_bar_of_a_histogram_leads_to_a_request_and_its_trace() -> None:
    """S66; where the reader asks for OpenMetrics."""
    metrics, trace = _followed(), TRACE
    metrics.replied("/v1/completions", 0.3, example_of("mine", trace))
    encode, _ = choose_encoder("application/openmetrics-text")
    found = {
        sample.exemplar.labels["request_id"]: (sample.labels["le"], sample.exemplar.labels)
        for family in read_openmetrics(encode(metrics.registry).decode())
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert found == {"mine": ("0.5", {"request_id": "mine", "trace_id": trace.trace_id})}
    assert "trace_id" not in generate_latest(metrics.registry).decode()


def test_an_example_is_never_too_long_for_its_form() -> None:
    """An id that a caller chose may have 128 characters; the trace goes before it."""
    trace = TRACE
    assert example_of("a" * 128, trace) == {"trace_id": trace.trace_id}
    assert example_of("a" * 128, None) == {}
    for num in (70, 78, 79):
        example = example_of("a" * num, trace)
        assert ("request_id" in example) == (num <= 78)
        _followed().replied("/", 0.1, example)


def test_the_share_of_a_class_is_that_of_lately() -> None:
    counts = StepCounts()
    assert counts.shares() == [0, 0, 0]
    for served, num_steps in (((4, 0, 0), 500), ((1, 3, 0), 5000)):
        facts = step(planned=PlanFacts(served_by_class=served))
        for _ in range(num_steps):
            counts.count(facts)
    assert counts.shares() == pytest.approx([0.25, 0.75, 0], abs=1e-3)


def test_only_the_catalogue_makes_metrics() -> None:
    """A metric made elsewhere would be in no list."""
    makers = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}
    makers |= {"CounterMetricFamily", "GaugeMetricFamily", "HistogramMetricFamily"}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prometheus")
            for alias in node.names
        }
        assert path.name == "instruments.py" or not found & makers, path


def test_a_metric_that_is_not_in_the_catalogue_is_a_fault_at_the_start() -> None:
    registry = CollectorRegistry()
    with pytest.raises(KeyError):
        counter("firsthand_anything", registry)
    with pytest.raises(KeyError, match="no counter"):
        counter("firsthand_batch_size", registry)


def test_a_gpu_that_does_not_say_is_left_out() -> None:
    def refuse(device: int) -> Any:
        raise OSError

    silent = nvml()
    silent.nvmlDeviceGetUtilizationRates = refuse
    assert all(not metric.samples for metric in Gpus(silent).collect())
    modest = nvml()
    modest.nvmlDeviceGetPowerUsage = refuse
    assert [one["watts"] for one in Gpus(modest).told()] == [None, None]
    told = Gpus(nvml()).told()[1]
    assert (told["gpu"], told["busy"], told["used_bytes"], told["num_bytes"], told["watts"]) == (
        *(1, 0.25, 3 << 30, 8 << 30),
        210.5,
    )


def test_without_a_driver_there_are_no_gpus() -> None:
    assert find_gpus() is None or list(find_gpus().collect())  # type: ignore[union-attr]
