"""`data run --ray`: which options go together, which is known without Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firsthand.cli.main import run_command


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--workers", "2"), "workers"),
        (("--address", "auto"), "address"),
        (("--ray", "--limit", "3"), "ray"),
        (("--ray", "--dry-run"), "ray"),
        (("--ray", "--parts", "0"), "parts"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], field: str
) -> None:
    code = run_command(["data", "run", str(tmp_path / "none.toml"), *arguments, "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert code == 2 and error["message"].startswith(f"{field}: ")
