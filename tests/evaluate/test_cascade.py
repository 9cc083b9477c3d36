"""From two models and a set to a calibration, and from there to quality against cost."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from firsthand.cascade.calibration import read_calibration
from firsthand.cascade.tradeoff import Point
from firsthand.cli.main import run_command
from firsthand.cli.micro_model import write_micro_model
from firsthand.evaluate.cascade import quality
from firsthand.evaluate.cascade_report import warning_of

pytestmark = pytest.mark.native

PROMPTS = [f"{word} {number}" for number, word in enumerate(("abc", "hello", "q", "1 2 3") * 3)]
SIZES = ("--threads", "1", "--max-context", "128")


@pytest.fixture(autouse=True)
def _may_have_only_just_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has just written is hashed all the same."""
    monkeypatch.setattr("firsthand.weights.packed_cache._TICK_NS", 0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folders = (tmp_path_factory.mktemp(name) for name in ("small", "large"))
    small, large = (str(write_micro_model(one, seed)) for seed, one in enumerate(folders))
    return small, large


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run_command([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_from_a_set_to_a_curve(
    models: tuple[str, str], prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, report = tmp_path / "quick.json", tmp_path / "report"
    words = ("--prompts", str(prompts), "--out", str(file), "--max-tokens", "6", *SIZES)
    code, made = said(capsys, "cascade", "calibrate", *models, *words)
    assert code == 0
    calibration = read_calibration(file)
    assert made["calibration"] == calibration.sha256
    assert (calibration.num_prompts, calibration.max_tokens) == (len(PROMPTS), 6)
    again = ("eval", str(file), "--metric", "cascade", "--pairs", str(prompts), *SIZES)
    code, found = said(capsys, *again, "--report-out", str(report))
    assert code == 0
    for name in ("measure", "window", "error", "calibration"):
        assert found[name] == made[name]
    points, known = found["points"], made["points"]
    assert [one["quality"] for one in points] == [one["quality"] for one in known], "same bits"
    assert [one["cost"] for one in points] == [one["cost"] for one in known]
    assert points[0]["escalated"] == 0
    assert points[0]["quality"] == points[0]["chance_quality"]
    assert [one["escalated"] for one in points] == sorted(one["escalated"] for one in points)
    assert json.loads((report / "report.json").read_text()) == found
    assert (report / "report.md").read_text().count("\n") >= len(points) + 2
    assert (report / "report.svg").is_file()
    assert run_command([*again]) == 0
    assert "chosen" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cascade", "calibrate", "{small}", "{small}", "--out", "{out}"), "large: is the small"),
        (("cascade", "calibrate", "{small}", "{large}", "--out", "{out}/x/y"), "out: there is no"),
        (("cascade", "choose", "{pairs}", "--confidence", "1"), "calibration: "),
        (("eval", "{pairs}", "--metric", "cascade"), "pairs: cascade needs"),
        (
            *(("eval", "{pairs}", "--metric", "cascade", "--quantization", "int8"),),
            "quantization: is in the file",
        ),
    ],
)
def test_what_is_wrong_is_told_by_its_name(
    models: tuple[str, str],
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    out = tmp_path / "quick.json"
    known = {"small": models[0], "large": models[1], "out": str(out), "pairs": str(prompts)}
    more = ["--prompts", str(prompts), *SIZES] if words[1] == "calibrate" else []
    more += ["--pairs", str(prompts)] if "--quantization" in words else []
    code, found = said(capsys, *(word.format(**known) for word in words), *more)
    assert code == 2
    assert found["error"]["message"].startswith(message)
    assert not out.exists()


def test_a_folder_is_refused_before_either_model_is_asked(
    models: tuple[str, str], prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--prompts", str(prompts), "--out", str(tmp_path), *SIZES, "--json")
    assert run_command(["cascade", "calibrate", *models, *words]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["message"] == f"out: {tmp_path} cannot be written"
    assert "answers" not in told.err


def test_a_threshold_is_set_whole_or_not_at_all(
    models: tuple[str, str],
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a link, too, which stays one; on a full disk the file is what it was."""
    file, link = tmp_path / "quick.json", tmp_path / "link.json"
    words = ("--prompts", str(prompts), "--out", str(file), "--max-tokens", "2", *SIZES)
    assert said(capsys, "cascade", "calibrate", *models, *words)[0] == 0
    link.symlink_to(file)
    assert said(capsys, "cascade", "choose", str(link), "--confidence", "0.25")[0] == 0
    assert (read_calibration(file).confidence, link.is_symlink()) == (0.25, True)

    def full(self: Path, content: bytes) -> int:
        with self.open("wb"):
            raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert said(capsys, "cascade", "choose", str(link), "--confidence", "0.5")[0] == 5
    assert read_calibration(file).confidence == 0.25


def test_a_model_without_a_template_is_named_before_either_is_asked(
    models: tuple[str, str], prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare").mkdir()
    bare = write_micro_model(tmp_path / "bare", seed=7)
    (bare / "tokenizer_config.json").unlink()
    words = ("--prompts", str(prompts), "--out", str(tmp_path / "x.json"), *SIZES, "--json")
    assert run_command(["cascade", "calibrate", models[0], str(bare), *words]) == 2
    told = capsys.readouterr()
    message = json.loads(told.out)["error"]["message"]
    assert message.startswith(f"form: {bare} has no chat template")
    assert "--form text" in message
    assert "answers" not in told.err


def point_of(escalated: float, cost: float) -> Point:
    return Point(0.8, escalated, 0.5, 0.5, cost, 1.0)


def test_a_threshold_that_is_no_good_is_warned_of() -> None:
    assert warning_of(point_of(0.4, 0.9)) is None
    assert "every answer" in str(warning_of(point_of(1.0, 0.99)))
    assert "84% of the answers on to the large model, and costs 123%" in str(
        warning_of(point_of(0.84, 1.23))
    )


def test_a_wrong_line_of_the_set_is_named(
    models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"reference": "b"}\n')
    words = ("--prompts", str(path), "--out", str(tmp_path / "x.json"))
    code, found = said(capsys, "cascade", "calibrate", *models, *words)
    assert (code, "line 2" in found["error"]["message"]) == (2, True)


def test_a_prompt_that_is_too_long_is_named(
    models: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in ("a", "word " * 99)))
    words = ("--prompts", str(path), "--out", str(tmp_path / "x.json"), *SIZES)
    code, found = said(capsys, "cascade", "calibrate", *models, *words, "--max-tokens", "2")
    assert code == 2
    assert found["error"]["message"].startswith("prompts: number 2, 'word word")


def test_equal_texts_are_of_full_quality_whatever_they_hold() -> None:
    assert quality("\x01", "\x01") == quality("a b", "A  b!") == 1.0
    assert quality("", "a") == 0.0
