"""`plan autoscale`: a table, one line of JSON, a picture; refusals by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from firsthand.cli.main import run_command
from tests.loadtest.test_curve import curve

Ask = Callable[..., str]


@pytest.fixture
def knee(tmp_path: Path) -> str:
    path = tmp_path / "knee.json"
    path.write_text(json.dumps(curve().to_dict()))
    return str(path)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def asked(*words: str, code: int = 0) -> str:
        assert run_command(["plan", "autoscale", *words]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return asked


def test_a_load_is_played_to_both_and_the_changes_have_their_reasons(ask: Ask, knee: str) -> None:
    shown = ask("--from", knee, "--load", "step")
    assert "1 → 2" in shown
    assert "requests are under way" in shown
    assert "flaps" in shown


def test_json_has_limits_changes_and_both(ask: Ask, knee: str) -> None:
    found = json.loads(ask("--from", knee, "--load", "sawtooth", "--json"))
    assert found["limits"]["max_replicas"] == 8
    assert found["ours"]["flaps"] == 0 < found["naive"]["flaps"]
    assert found["changes"][0]["reason"]


def test_a_trace_counts_by_its_tokens_and_is_drawn(ask: Ask, knee: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace = tmp_path / "trace.jsonl"
    lines = [
        json.dumps({"timestamp": at * 100, "input_length": 5, "output_length": 8})
        for at in range(3000)
    ]
    trace.write_text("\n".join(lines))
    plot = tmp_path / "autoscale.svg"
    asked = ("--from", knee, "--trace", str(trace), "--plot-out", str(plot), "--json")
    found = json.loads(ask(*asked))
    assert found["ours"]["most_replicas"] >= 2, "10 a second, each as long as two of the knee's"
    assert plot.read_text().startswith("<?xml")


def test_limits_of_a_file_hold_and_what_is_wrong_is_named(
    ask: Ask, knee: str, tmp_path: Path
) -> None:
    file = tmp_path / "scaling.toml"
    file.write_text('knee = "knee.json"\nmax-replicas = 3\n')
    found = json.loads(ask("--from", knee, "--limits", str(file), "--load", "step", "--json"))
    assert found["ours"]["most_replicas"] == 3
    assert "must be one of day" in ask("--from", knee, "--load", "night", code=2)
    assert "has its own" in ask("--from", knee, "--trace", knee, "--qps", "3", code=2)
    assert "has its own" in ask("--from", knee, "--trace", knee, "--load", "day", code=2)
    assert "error: trace: " in ask("--from", knee, "--trace", knee, code=2)
    assert "max_replicas" in ask("--from", knee, "--max-replicas", "0", code=2)
    for seconds in ("nan", "inf", "-1"):
        assert "start_s" in ask("--from", knee, "--start-s", seconds, code=2)
