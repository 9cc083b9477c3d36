"""The measuring commands: one line of JSON, a table, and refusals by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.cli.micro_model import write_micro_model
from firsthand.measure import limits

pytestmark = pytest.mark.native

SMALL = ("--prompt-tokens", "8", "--repeats", "1", "--threads", "1")
OUTPUT = ("--output-tokens", "4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_micro_model(tmp_path_factory.mktemp("micro")))


@pytest.fixture(autouse=True)
def quick_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOP_MS", "READ_MS"):
        monkeypatch.setattr(limits, name, 1.0)
    monkeypatch.setattr(limits, "NUM_ROUNDS", 1)


def shown(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == code, done.output
    return done.stdout


def called(*arguments: str, code: int = 0) -> dict[str, Any]:
    (line,) = shown(*arguments, "--json", code=code).splitlines()
    value = json.loads(line)
    assert isinstance(value, dict)
    return value


def test_bench_latency(model: str) -> None:
    found = called("bench", "latency", model, *SMALL, *OUTPUT)
    assert found["threads"] == 1
    assert set(found["limit_share"]) == {"prompt", "decode"}
    int4 = called("bench", "latency", model, *SMALL, *OUTPUT, "--quantization", "int4")
    assert int4["format"] != found["format"]
    page = shown("bench", "latency", model, *SMALL, *OUTPUT)
    for word in ("prompt", "decode", "OF LIMIT", "GB/s", "GMAC/s", "peak"):
        assert word in page


def test_the_page_names_every_key_of_latency(model: str) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "measure.md").read_text(encoding="utf-8")
    found = called("bench", "latency", model, *SMALL, *OUTPUT)
    keys = [*found, *found["machine"], *found["limit_share"], *found["prompt_tokens_per_second"]]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_bench_throughput(model: str) -> None:
    given = ("bench", "throughput", model, *SMALL, *OUTPUT, "--concurrency", "3")
    found = called(*given)
    assert found["concurrency"] == 3
    page = (Path(__file__).resolve().parents[2] / "docs" / "measure.md").read_text(encoding="utf-8")
    keys = [*found, *found["kv_blocks"], *found["step_ms"]]
    assert [key for key in keys if f"`{key}`" not in page] == []
    assert "outside the kernels" in shown(*given)


def test_bench_compare(model: str, tmp_path: Path) -> None:
    sizes = ("--output-tokens", "16", "--concurrency", "2", "--prefix-tokens", "64")
    given = ("bench", "compare", model, "--threads", "1", "--repeats", "1", *sizes)
    found = called(*given)["outcomes"]
    assert [one["name"] for one in found] == ["batching", "store", "prefix"]
    page = (Path(__file__).resolve().parents[2] / "docs" / "measure.md").read_text(encoding="utf-8")
    sides = [one[side] for one in found for side in ("plain", "ours")]
    keys = {key for one in found for key in one} | {key for one in sides for key in one["facts"]}
    assert [key for key in keys if f"`{key}`" not in page] == []
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.svg"
    shown_page = shown(*given, "--only", "prefix", "--plot-out", str(plot))
    assert "shared prefix" in shown_page
    assert plot.stat().st_size > 1000


def test_bench_startup(model: str) -> None:
    assert called("bench", "startup", model, *SMALL)["first_token_ms"]["median"] > 0
    assert "first token" in shown("bench", "startup", model, *SMALL)


@pytest.mark.process
def test_s86_bench_load(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTHAND_HOME", str(tmp_path))
    monkeypatch.setenv("FIRSTHAND_PACK_CACHE", "1")
    ways = called("bench", "load", model, "--repeats", "1")["ways"]
    assert [one["way"] for one in ways] == ["packing", "whole", "shards"]
    assert all(one["load_ms"]["median"] > 0 for one in ways)
    assert "WEIGHTS HELD" in shown("bench", "load", model, "--repeats", "1")


def test_bench_ablate(model: str) -> None:
    outcomes = called("bench", "ablate", model, *SMALL, *OUTPUT)["outcomes"]
    assert [one["variable"] for one in (outcomes[0], outcomes[-1])] == ["rule", "base"]
    assert "█" in shown("bench", "ablate", model, *SMALL, *OUTPUT)


@pytest.mark.torch
def test_s15_compiled_steps_are_shown(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is not at issue here, and takes long."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    options = ["--executor", "torch", "--compile", "--max-context", "64"]
    options += ["--compile-bucket", "10", "--compile-bucket", "1"]
    sizes = ("--prompt-tokens", "8", "--repeats", "1", *OUTPUT)
    found = called("bench", "latency", model, *sizes, *options)["compile"]
    assert (found["hit_rate"], found["num_hits"], found["num_misses"]) == (1.0, 8, 0)
    rows = [(one["num_rows"], one["num_hits"], one["num_padded_rows"]) for one in found["buckets"]]
    assert rows == [(1, 6, 0), (10, 2, 4)]
    assert "compiled 8 of 8 steps" in shown("bench", "latency", model, *sizes, *options)
    run = ("run", model, "a word", "--max-tokens", "3", "--temperature", "0", *options)
    assert called(*run, "--report")["compile"]["num_hits"] == 3
    assert called("bench", "latency", model, *SMALL, *OUTPUT)["compile"] is None


@pytest.mark.torch
@pytest.mark.parametrize("step", ["prompt", "token"])
def test_s42_profile_of_torch_has_its_calls(model: str, step: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "trace.json"
    options = ("--prompt-tokens", "8", "--repeats", "2", "--executor", "torch", "--step", step)
    found = called("profile", model, *options, "--trace-out", str(file))
    calls = {call["name"]: call for call in found["calls"]}
    assert calls["aten::mm"]["num_flops"] > 0
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    names = {event["name"] for event in events if event.get("ph") == "X"}
    assert {"aten::mm", "attend layer 0"} <= names
    page = shown("profile", model, *options)
    assert "aten::mm" in page
    assert "linear(" in page


@pytest.mark.parametrize("step", ["prompt", "token"])
def test_profile(model: str, step: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    found = called("profile", model, *SMALL, "--step", step, "--trace-out", str(file))
    assert found["total_ms"] == pytest.approx(sum(op["ms"] for op in found["operators"]))
    assert found["num_tokens"] == (8 if step == "prompt" else 1)
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    assert len([e for e in events if e["ph"] == "X"]) == len(found["operators"])
    assert "linear(" in shown("profile", model, *SMALL, "--step", step)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("bench", "latency", "M", "--prompt-tokens", "0"), "prompt_tokens"),
        (("bench", "latency", "M", "--output-tokens", "1"), "output_tokens"),
        (("bench", "latency", "M", "--repeats", "0"), "repeats"),
        (("bench", "latency", "M", "--prompt-tokens", "9999"), "prompt_tokens"),
        (("bench", "throughput", "M", "--concurrency", "0"), "concurrency"),
        (("bench", "throughput", "M", "--output-tokens", "1"), "output_tokens"),
        (("bench", "startup", "M", "--repeats", "0"), "repeats"),
        (("bench", "ablate", "M", "--output-tokens", "1"), "output_tokens"),
        (("bench", "ablate", "M", "--only", "colour"), "only"),
        (("bench", "ablate", "M", "--plot-out", "x.gif"), "plot_out"),
        (("profile", "M", "--step", "other"), "step"),
        (("profile", "M", "--prompt-tokens", "0"), "prompt_tokens"),
        (("profile", "M", "--prompt-tokens", "9999"), "prompt"),
        (("profile", "M", "--trace-out", "no/such/folder/file"), "trace_out"),
    ],
)
def test_a_bad_value_is_named_and_is_2(model: str, arguments: tuple[str, ...], field: str) -> None:
    given = [model if word == "M" else word for word in arguments]
    assert field in called(*given, code=2)["error"]["message"]


def test_bench_without_a_command_shows_them() -> None:
    done = CliRunner().invoke(build_app(), ["bench", "--help"])
    for command in ("latency", "throughput", "startup", "ablate"):
        assert f"\n  {command} " in done.output
