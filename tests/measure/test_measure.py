"""The measurements on the generated model: fields, sums, and refusals by name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.cli.micro_model import NUM_LAYERS, write_micro_model
from firsthand.compute.fusion import RULES
from firsthand.compute.native import _native
from firsthand.errors import (
    ContextLengthExceeded,
    EngineError,
    FirsthandError,
    InvalidRequest,
    ModelNotFound,
)
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.report import Report
from firsthand.measure import ablation
from firsthand.measure import limits as limits_module
from firsthand.measure.ablation import ablate, variations
from firsthand.measure.latency import measure_latency, prompt_of, run_once
from firsthand.measure.limits import MachineLimits, measure_limits
from firsthand.measure.profile import chrome_trace, label_of, profile, profile_of
from firsthand.measure.startup import measure_startup
from firsthand.processes import peak_resident_bytes

pytestmark = pytest.mark.native

MACHINE = MachineLimits(2, 1, 20.0, 200.0, 100.0)
Step = Literal["prompt", "token"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_micro_model(tmp_path_factory.mktemp("micro")))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, threads=1, max_sequences=1) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def quick_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOP_MS", "READ_MS"):
        monkeypatch.setattr(limits_module, name, 1.0)
    monkeypatch.setattr(limits_module, "NUM_ROUNDS", 1)


def test_limits_are_positive_and_the_best_of_their_loops() -> None:
    found = measure_limits(1 << 20, 2)
    assert found.threads == 2
    assert all(rate > 0 for rate in found.to_dict().values())
    assert {loop.unit for loop in found.loops} == {"int8", "fp32"}
    assert "portable" in {loop.isa for loop in found.loops}
    best = {
        unit: max(loop.rate for loop in found.loops if loop.unit == unit)
        for unit in ("int8", "fp32")
    }
    assert found.int8_gmac_per_second == best["int8"]
    assert found.fp32_gflops == best["fp32"] == 2 * found.fp32_gmac_per_second


def test_a_loop_of_the_machine_is_faster_than_plain_code() -> None:
    found = measure_limits(1 << 20, 1)
    if {loop.isa for loop in found.loops} != {"portable"}:
        plain = max(x.rate for x in found.loops if (x.isa, x.unit) == ("portable", "int8"))
        assert found.int8_gmac_per_second > plain


@pytest.mark.parametrize(("num_bytes", "threads"), [(0, 1), (1, 0), (2**36 + 1, 1), (1, 257)])
def test_limits_refuse_by_name(num_bytes: int, threads: int) -> None:
    with pytest.raises(InvalidRequest, match="num_bytes" if threads == 1 else "threads"):
        measure_limits(num_bytes, threads)


def test_the_border_refuses_what_cannot_be_timed() -> None:
    pool = _native.Threads(1)
    for index in (-1, len(_native.limit_loops())):
        with pytest.raises(ValueError, match="no such loop"):
            _native.loop_rate(index, pool, 1.0)
    for ms in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(ValueError, match="ms must be"):
            _native.loop_rate(0, pool, ms)
    with pytest.raises(ValueError, match="num_bytes"):
        _native.read_rate(0, pool, 1.0)
    assert _native.read_rate(1, pool, 1.0) > 0


def test_latency_has_the_fields_and_stays_below_the_limits(llm: LLM) -> None:
    found = measure_latency(llm, 32, 8, 2).to_dict()
    assert list(found) == [
        "prompt_tokens_per_second",
        "decode_tokens_per_second",
        "ttft_ms",
        "format",
        "threads",
        "peak_rss_bytes",
        "machine",
        "limit_share",
        "compile",
    ]
    for name in ("prompt_tokens_per_second", "decode_tokens_per_second"):
        assert list(found[name]) == ["min", "median", "max"]
        assert 0 < found[name]["min"] <= found[name]["median"] <= found[name]["max"]
    assert list(found["machine"]) == [
        "read_gb_per_second",
        "int8_gmac_per_second",
        "fp32_gflops",
    ]
    assert list(found["limit_share"]) == ["prompt", "decode"]
    assert all(0 < share <= 1.05 for share in found["limit_share"].values())
    assert found["threads"] == 1
    assert found["format"].split(", ")[0] == "int8/channel"
    assert found["ttft_ms"] > 0
    assert found["peak_rss_bytes"] > 1 << 20


@pytest.mark.parametrize(
    ("sizes", "field", "error"),
    [
        ((0, 8, 1), "prompt_tokens", InvalidRequest),
        ((8, 1, 1), "output_tokens", InvalidRequest),
        ((8, 8, 0), "repeats", InvalidRequest),
        ((510, 8, 1), "prompt_tokens", ContextLengthExceeded),
    ],
)
def test_latency_refuses_by_name(
    llm: LLM, sizes: tuple[int, int, int], field: str, error: type[FirsthandError]
) -> None:
    with pytest.raises(error, match=field):
        measure_latency(llm, *sizes)


def test_a_prompt_is_spread_over_the_vocabulary() -> None:
    ids = prompt_of(200, 257)
    assert len(set(ids)) == 200
    assert all(0 <= token_id < 257 for token_id in ids)


def test_the_peak_is_that_of_this_program() -> None:
    before = peak_resident_bytes()
    held = bytearray(b"x" * (before + (64 << 20)))
    assert peak_resident_bytes() > len(held)


@pytest.mark.parametrize("step", ["prompt", "token"])
def test_a_profile_sums_to_its_trace(llm: LLM, step: Step) -> None:
    ops = llm.trace(prompt_of(20, 257), step=step)
    found = profile_of(ops, step, MACHINE)
    assert [one.op for one in found.operators] == list(ops)
    for name in ("ms", "num_bytes", "num_macs"):
        whole = sum(getattr(op, name) for op in ops)
        assert sum(getattr(group, name) for group in found.groups) == pytest.approx(whole)
    assert found.total_ms == pytest.approx(sum(op.ms for op in ops))
    assert sum(group.count for group in found.groups) == len(ops)
    assert {group.count for group in found.groups} == {1, NUM_LAYERS}
    assert found.num_tokens == (20 if step == "prompt" else 1)
    times = [group.ms for group in found.groups]
    assert times == sorted(times, reverse=True)


def test_the_products_of_a_step_are_those_of_its_shapes(llm: LLM) -> None:
    """20 rows of q, k, v, o, gate, up, down; 210 pairs of 4 heads of 16, twice; one row of head."""
    ops = llm.trace(prompt_of(20, 257))
    macs = {op.name: 0 for op in ops}
    for op in ops:
        macs[op.name] += op.num_macs
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96
    assert macs["linear"] == 20 * NUM_LAYERS * layer
    assert macs["attend"] == NUM_LAYERS * 2 * 210 * 64
    assert macs["head"] == 257 * 64
    assert macs["embed"] == macs["store"] == 0


def test_like_operators_have_one_label(llm: LLM) -> None:
    labels = {label_of(op) for op in llm.trace([1, 2, 3])}
    assert "attend [rope]" in labels
    assert any(label.startswith("linear(self_attn.q_proj, ") for label in labels)
    assert not any("layer" in label.replace("layernorm", "") for label in labels)


def test_the_trace_file_has_every_operator_in_order(llm: LLM) -> None:
    found = profile(llm, prompt_of(20, 257), "prompt", 2)
    trace = json.loads(json.dumps(chrome_trace(found), allow_nan=False))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [event["cat"] for event in events] == [one.op.name for one in found.operators]
    for earlier, later in pairwise(events):
        assert earlier["ts"] + earlier["dur"] == pytest.approx(later["ts"])
    assert sum(event["dur"] for event in events) == pytest.approx(found.total_ms * 1e3)
    assert {event["pid"] for event in trace["traceEvents"]} == {1}


def test_a_new_process_is_timed_to_its_first_token(model: str) -> None:
    found = measure_startup(model, {"threads": 1, "max_sequences": 1}, repeats=1)
    assert found.first_token_ms.min > found.load_ms.min > 0
    assert found.peak_rss_bytes > found.weights_bytes > 0
    assert found.kv_used_bytes > 0
    held = found.weights_bytes + found.kv_used_bytes
    assert found.overhead_bytes == found.peak_rss_bytes - held


def test_startup_refuses_by_name(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="repeats"):
        measure_startup(model, {}, 0)
    with pytest.raises(InvalidRequest, match="kv_dtype"):
        measure_startup(model, {"kv_dtype": "int3"})
    with pytest.raises(ModelNotFound):
        measure_startup("no-such-model-at-all", {})
    with pytest.raises(EngineError, match="context"):
        measure_startup(model, {"max_context": 8}, 1)
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(EngineError, match="without an answer"):
        measure_startup(model, {}, 1)


def test_variations_change_one_thing_at_a_time() -> None:
    base = LoadOptions(max_step_tokens=512)
    found = variations(base, 4)
    assert (found[-1].variable, found[-1].options) == ("base", base)
    for one in found[:-1]:
        names = [n for n in LoadOptions.__slots__ if getattr(one.options, n) != getattr(base, n)]
        assert len(names) == 1, one
    rules = [one.value for one in found if one.variable == "rule"]
    assert rules == [*(f"no {rule.name}" for rule in RULES), "none"]
    assert [one.value for one in found if one.variable == "threads"] == ["1", "2"]
    assert {one.variable for one in found} == set(ablation.VARIABLES)


def test_variations_leave_out_what_the_executor_has_not() -> None:
    found = variations(LoadOptions(executor="torch"), 4)
    assert {"rule", "threads"}.isdisjoint(one.variable for one in found)


def test_ablation_measures_each_beside_the_base(model: str) -> None:
    base = LoadOptions(threads=1, max_sequences=1)
    begun: list[str] = []
    found = list(ablate(model, base, 8, 4, 1, lambda one: begun.append(one.variable)))
    assert begun == [one.variable for one in found] == [x.variable for x in variations(base, 1)]
    for one in found:
        assert one.prompt_ratio > 0
        assert one.decode_ratio > 0
        assert one.threads == 1
    by_name = {(one.variable, one.value): one for one in found}
    assert by_name["format", "none"].format == "float32"
    assert json.loads(json.dumps(found[0].to_dict()))["variable"] == "rule"


def test_a_ratio_is_the_median_over_pairs(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Base 10, 10, 100 ms beside 5, 20, 50 ms: ratios 2, 0.5, 2. The first pair warms up."""
    times = [1.0, 1.0, 10.0, 5.0, 10.0, 20.0, 100.0, 50.0] * 100

    def timed(llm: LLM, prompt: Sequence[int], output_tokens: int) -> Report:
        ms = times.pop(0)
        report = run_once(llm, prompt, output_tokens)
        return replace(report, prompt_ms=ms, token_ms=(3 * ms,))

    monkeypatch.setattr(ablation, "run_once", timed)
    first = next(ablate(model, LoadOptions(threads=1, max_sequences=1), 8, 2, 3))
    assert (first.prompt_ratio, first.decode_ratio) == (2.0, 2.0)
    assert first.base_speed.prompt_tokens_per_second.median == pytest.approx(800.0)
    assert first.speed.decode_tokens_per_second.max == pytest.approx(1000 / 15)


def test_ablation_refuses_by_name(model: str) -> None:
    with pytest.raises(InvalidRequest, match="output_tokens"):
        next(ablate(model, LoadOptions(), 8, 1, 1))
    with pytest.raises(InvalidRequest, match=r"only.*colour"):
        next(ablate(model, LoadOptions(), 8, 2, 1, only=["colour"]))


def test_guesses_are_told_beside_what_they_brought(model: str) -> None:
    base = LoadOptions(threads=1, max_sequences=1)
    guessed, again = ablate(model, base, 8, 24, 1, only=["speculation"])
    assert (guessed.value, again.variable) == ("ngram", "base")
    assert 0 <= guessed.num_accepted <= guessed.num_guesses
    assert (again.num_guesses, again.num_accepted) == (0, 0)
    words = [*("--only", "speculation", "--prompt-tokens", "8", "--output-tokens", "24")]
    words += [*("--repeats", "1", "--threads", "1")]
    shown = CliRunner().invoke(build_app("bench"), ["bench", "ablate", model, *words])
    assert re.search(r"of \d+ guessed tokens \d+ were right", shown.stdout)


def test_only_some_variables_and_the_base(model: str) -> None:
    base = LoadOptions(threads=1, max_sequences=1)
    found = [one.variable for one in ablate(model, base, 8, 2, 1, only=["kv"])]
    assert set(found) == {"kv", "base"}
