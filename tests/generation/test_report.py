"""Times and memory of a generation: every sum is that of its parts."""

from __future__ import annotations

import json

import pytest

from firsthand.engine.facts import StepFacts
from firsthand.generation.report import (
    LoadTimes,
    Memory,
    StepLedger,
    StepTimes,
    Timeline,
    build_report,
)
from firsthand.processes import peak_resident_bytes

LOAD = LoadTimes(1.0, 2.0, 0.0, 3.0, 4.0, total_ms=10.0)
MEMORY = Memory(100, 10, 1000, 50, 10_000)


def facts(*request_ids: str, started_s: float = 0.0) -> StepFacts:
    return StepFacts(
        started_s=started_s,
        request_ids=request_ids,
        slice_tokens=(1,) * len(request_ids),
        num_drawn=0,
        num_finished=0,
        num_waiting=0,
        num_running=0,
        num_used_blocks=0,
        plan_ms=0.0,
        run_ms=3.5,
        forward_ms=3.0,
        sample_ms=0.5,
        commit_ms=0.0,
    )


def test_the_ledger_sums_the_steps_of_each_request() -> None:
    ledger = StepLedger(capacity=3)
    ledger.record(facts("a", "c", started_s=5.0))
    ledger.record(facts("a", "b", "c", started_s=6.0))
    assert ledger.of("a") == StepTimes(5.0, 6.0, 1.0, 2, 3)
    assert ledger.of("b") == StepTimes(6.0, 3.0, 0.5, 1, 3)
    assert ledger.of("stranger") == StepTimes()


def test_the_ledger_forgets_who_was_longest_in_no_step() -> None:
    ledger = StepLedger(capacity=2)
    for name in ("a", "b", "a", "c"):
        ledger.record(facts(name))
    assert ledger.of("b") == StepTimes()
    assert ledger.of("a").num_steps == 2


def test_the_stages_of_a_request() -> None:
    timeline = Timeline(1.0, 1.5, (3.0, 3.25, 3.75), 4.0, detokenize_ms=2.0)
    steps = StepTimes(first_started_s=2.0, forward_ms=9.0, sample_ms=1.0, num_steps=3, peak_batch=2)
    report = build_report(LOAD, MEMORY, 10, timeline, steps)
    assert (report.tokenize_ms, report.queue_ms, report.prompt_ms) == (500.0, 500.0, 1000.0)
    assert report.token_ms == (250.0, 500.0)
    assert (report.ttft_ms, report.total_ms) == (2000.0, 3000.0)
    assert report.ttft_ms == report.tokenize_ms + report.queue_ms + report.prompt_ms
    assert report.prompt_per_second == 10.0
    assert report.predicted_ms == 750.0
    assert report.predicted_per_second == pytest.approx(2 / 0.75)
    assert report.num_tokens == 3


def test_the_rates_of_a_prompt_are_about_what_was_computed() -> None:
    timeline = Timeline(1.0, 1.5, (3.0,), 4.0, detokenize_ms=2.0)
    report = build_report(LOAD, MEMORY, 10, timeline, StepTimes(2.0, num_cached_tokens=6))
    assert (report.prompt_per_second, report.prompt_per_token_ms) == (4.0, 250.0)
    shown = report.to_dict()["timings"]
    assert (shown["cache_n"], shown["prompt_n"]) == (6, 4)
    assert shown["prompt_n"] * shown["prompt_per_token_ms"] == shown["prompt_ms"]


def test_a_request_that_was_never_run() -> None:
    report = build_report(LOAD, MEMORY, 10, Timeline(1.0, 1.5, (), 2.0, 0.0), StepTimes())
    assert (report.queue_ms, report.prompt_ms, report.token_ms) == (500.0, 0.0, ())
    assert report.prompt_per_second is None
    assert report.predicted_per_second is None
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_names_in_json() -> None:
    timeline = Timeline(1.0, 1.5, (3.0, 3.25), 4.0, detokenize_ms=2.0)
    shown = build_report(LOAD, MEMORY, 10, timeline, StepTimes(2.0)).to_dict()
    assert shown["timings"]["load_ms"] == 10.0
    names = {"prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"}
    names |= {"predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}
    names |= {"tokenize_ms", "sample_ms", "detokenize_ms", "ttft_ms", "queue_ms"}
    assert names <= shown["timings"].keys()
    assert shown["memory"]["kv_used_bytes"] == 50
    json.dumps(shown, allow_nan=False)


def test_the_peak_is_measured() -> None:
    assert peak_resident_bytes() > 5_000_000
