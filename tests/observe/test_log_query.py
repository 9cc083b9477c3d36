"""The errors of a log, counted by where they come from."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from firsthand.cli.main import run_command
from firsthand.observe.log_lines import MAX_LINE_CHARS
from firsthand.observe.log_query import MAX_GROUPS, count_errors

NOW_S = 1_800_000_000.0


def line(level: str, ago_s: float = 0.0, module: str = "firsthand.a", **more: object) -> str:
    at = datetime.fromtimestamp(NOW_S - ago_s, UTC).isoformat(timespec="milliseconds")
    found = {"timestamp": at.replace("+00:00", "Z"), "level": level, "module": module}
    return json.dumps(found | {"message": "it failed"} | more) + "\n"


def test_s_97_errors_are_counted_by_module_with_their_share() -> None:
    lines = [line("info") for _ in range(97)] + [line("error", request_id="r-1")] * 3
    lines += [line("error", module="b", ago_s=9), line("error", module="c", ago_s=301)]
    found = count_errors(lines, NOW_S - 300, "module")
    assert [(one.name, one.num_errors, one.num_lines) for one in found.groups] == [
        ("firsthand.a", 3, 100),
        ("b", 1, 1),
    ]
    assert found.groups[0].share == 0.03 and found.groups[0].last_request_id == "r-1"
    assert found.num_lines == 101 and found.num_unread == 0


def test_what_is_no_line_of_ours_is_passed_over() -> None:
    """Also one with its fields in another order, which has to be parsed to be dated."""
    other = json.dumps({"level": "error", "timestamp": "2000-01-01T00:00:00.000Z"})
    lines = ["Fatal Python error\n", "[1]\n", "\n", "{" * 5000, "x" * (MAX_LINE_CHARS + 1), other]
    found = count_errors(lines, NOW_S, "module")
    assert (found.groups, found.num_unread) == ([], 4)


def test_groups_are_bounded_and_an_error_is_named_by_its_code() -> None:
    lines = [line("error", error={"code": f"c{number}"}) for number in range(MAX_GROUPS + 5)]
    found = count_errors(lines, NOW_S - 1, "error")
    assert found.groups[0].name == "others" and found.groups[0].num_errors == 5
    assert "c7" in {one.name for one in found.groups}


def test_the_command_reads_files_and_the_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S)
    log = tmp_path / "log"
    log.write_text(line("error", 60, module="a") + line("info") * 9 + "no json\n")
    assert run_command(["logs", "errors", str(log), "--since", "5m", "--by", "module"]) == 0
    shown = capsys.readouterr()
    assert "100.0%" in shown.out and "1 lines are no JSON" in shown.err
    monkeypatch.setattr("sys.stdin", io.StringIO(line("error") + line("info") * 199))
    assert run_command(["logs", "errors", "--over", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == []
    for wrong in (["--by", "text"], ["--since", "soon"]):
        assert run_command(["logs", "errors", str(log), *wrong]) == 2
    assert run_command(["logs", "errors", str(tmp_path / "none")]) == 1
