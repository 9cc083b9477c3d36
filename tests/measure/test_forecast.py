"""Will it fit, and how fast: by sizes, before a load and before a fetch.

Owns: these proofs. May not know: how a limit is measured. Read next: `test_limits.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.cli.micro_model import write_micro_model
from firsthand.generation.load_options import LoadOptions
from firsthand.measure.forecast import forecast
from firsthand.measure.known_limits import known_limits
from firsthand.weights.model_names import KNOWN_MODELS

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With limits on record, so that nothing is measured."""
    folder = tmp_path / "home"
    monkeypatch.setenv("FIRSTHAND_HOME", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    return str(write_micro_model(tmp_path / "model"))


def test_limits_are_measured_once_and_kept(home: Path) -> None:
    first, again = (known_limits(1 << 20, 1, home) for _ in range(2))
    assert first.origin == "measured now"
    assert again.origin.startswith("measured on 20")
    assert again.read_gb_per_second == first.read_gb_per_second > 0
    (home / "limits.json").write_text("{broken")
    assert known_limits(1 << 20, 1, home).origin == "measured now"


def test_a_model_that_is_here_is_weighed_by_its_tensors(model: str) -> None:
    found = forecast(model, LoadOptions(threads=1))
    assert found.is_here
    assert found.fits
    assert found.context_length == 512
    assert found.decode_tokens_per_second == pytest.approx(
        found.limits.read_gb_per_second * 1e9 / found.weights_bytes
    )
    assert found.prompt_tokens_per_second is not None


def test_a_model_that_does_not_fit_says_why(model: str) -> None:
    found = forecast(model, LoadOptions(threads=1, memory_limit=1 << 20))
    assert not found.fits
    assert "memory" in found.why_not
    shown = CliRunner().invoke(
        build_app(), ["check", model, "--threads", "1", "--memory-limit", "1MiB", "--json"]
    )
    assert shown.exit_code == 5
    assert json.loads(shown.stdout)["fits"] is False


def test_a_model_that_is_not_here_is_weighed_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    (known, *_) = KNOWN_MODELS.values()
    found = forecast(known.name, LoadOptions(threads=1))
    assert not found.is_here
    assert found.file_bytes == known.num_bytes
    assert found.need_bytes > known.num_bytes
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shown = CliRunner().invoke(build_app(), ["check", "nobody/nothing", "--json"])
    assert shown.exit_code == 4


def test_the_command_says_which_numbers_it_rests_on(model: str) -> None:
    shown = CliRunner().invoke(build_app(), ["check", model, "--threads", "1"])
    assert shown.exit_code == 0, shown.output
    assert "at most" in shown.stdout
    assert "by this machine's limits, measured now" in shown.stdout
