"""The commands of the alerts.

Owns: proof of `cli/alerts.py`. Read next: `tests/observe/test_alerts.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from firsthand.observe import proving
from firsthand.observe.proving import Outcome
from tests.cli.test_commands import call, called


def test_export_writes_the_files_with_the_users_limits(tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text('error-ratio = 0.25\nphone-url = "http://pager/x"\n')
    folder = tmp_path / "out"
    files = called("alerts", "export", str(folder), "--config", str(limits))["files"]
    assert {str(path) for path in folder.iterdir()} == set(files)
    rules = yaml.safe_load((folder / "firsthand.rules.yml").read_text(encoding="utf-8"))
    found = {rule["alert"]: rule["expr"] for rule in rules["groups"][0]["rules"]}
    assert found["FirsthandErrorRatioHigh"].partition(" and ")[0].endswith("> 0.25")
    routes = yaml.safe_load((folder / "alertmanager.yml").read_text(encoding="utf-8"))
    assert routes["receivers"][0]["webhook_configs"][0]["url"] == "http://pager/x"


def test_a_wrong_limit_is_wrong_usage(tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("error-ratio = 25\n")
    error = called("alerts", "test", "--config", str(limits), code=2)["error"]
    assert "at most 1" in error["message"]


@pytest.mark.parametrize(
    ("passed", "code", "word"), [(True, 0, "ok"), (False, 3, "FAILED"), (None, 0, "left out")]
)
def test_what_the_programs_say_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    passed: bool | None,
    code: int,
    word: str,
) -> None:
    said = "first line\n  the last line"
    monkeypatch.setattr(proving, "prove", lambda settings: iter([Outcome("rules", passed, said)]))
    shown = call("alerts", "test", code=code).stdout
    assert word in shown
    assert "the last line" in shown
    assert ("first line" in shown) == (passed is False)


def test_without_promtool_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "promtool" in call("alerts", "test", code=2).stderr


def test_without_a_record_no_rule_is_said_to_be_silent(tmp_path: Path) -> None:
    shown = call("alerts", "review", "--record", str(tmp_path / "none"))
    assert "never fired" not in shown.stdout
    assert "nothing is on record" in shown.stderr and "alerts receive" in shown.stderr
