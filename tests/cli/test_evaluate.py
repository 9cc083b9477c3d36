"""The eval command: one line of JSON or a page, progress beside it, and texts it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from firsthand.cli.main import build_app
from firsthand.cli.micro_model import write_micro_model
from firsthand.files import MAX_TEXT_BYTES

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_micro_model(tmp_path_factory.mktemp("micro")))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("All's well that ends well. " * 12, encoding="utf-8")
    return path


def call(*arguments: object, code: int = 0) -> Result:
    shown = CliRunner().invoke(build_app(), ["eval", *map(str, arguments)])
    assert shown.exit_code == code, shown.output
    return shown


def test_eval_is_one_line_of_json_with_progress_beside_it(model: str, text: Path) -> None:
    arguments = ("--metric", "perplexity", "--window", "64", "--windows", "3")
    shown = call(model, "--text", text, *arguments, "--quantization", "int8", "--json")
    (line,) = shown.stdout.splitlines()
    found = json.loads(line)
    assert (found["metric"], found["model"]) == ("perplexity", model)
    assert (found["windows"], found["window"], found["tokens_scored"]) == (3, 64, 3 * 63)
    assert (found["executor"], found["kv_dtype"]) == ("native", "int16")
    assert found["quantization"] == "int8"
    assert "int8/channel" in found["format"]
    assert found["perplexity"] > 1
    assert found["standard_error"] > 0
    assert "window 3 of 3: perplexity" in shown.stderr


def test_the_page_names_every_key(model: str, text: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "evaluate.md").read_text("utf-8")
    found = json.loads(call(model, "--text", text, "--json").stdout)
    assert [key for key in found if f"`{key}`" not in page] == []


def test_eval_shows_a_page(model: str, text: Path) -> None:
    found = json.loads(call(model, "--text", text, "--json").stdout)
    shown = call(model, "--text", text).stdout
    assert f"{found['perplexity']:.4f} ± {found['standard_error']:.4f}" in shown
    for word in ("nats per token", f"{found['tokens_scored']} tokens", found["format"]):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--metric", "beauty"), "metric"),
        (("--window", "1"), "window"),
        (("--window", "1000"), "window"),
        (("--windows", "0"), "windows"),
        (("--kv-dtype", "int3"), "kv_dtype"),
    ],
)
def test_wrong_options(model: str, text: Path, arguments: tuple[str, ...], field: str) -> None:
    shown = call(model, "--text", text, *arguments, "--json", code=2)
    assert json.loads(shown.stdout)["error"]["message"].startswith(f"{field}: ")


def test_a_text_that_is_none_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"caf\xe9")
    huge = tmp_path / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(MAX_TEXT_BYTES + 1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (bad, huge, pipe, tmp_path, tmp_path / "missing"):
        shown = call("no-such-model", "--text", path, code=2)
        assert "error: text: " in shown.stderr
