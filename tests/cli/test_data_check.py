"""`firsthand data check`: one line with --json, and what its exit code says."""

import json
from pathlib import Path

import pytest

from firsthand.cli.main import run_command


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run_command(["data", "check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_file_in_gbk_and_its_books(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    rows = "request_id,text,max_length\n1,今天的天气很好,5\n2,你好\n1,我们一起去公园,5\n4,好,9999\n"
    path.write_bytes(rows.encode("gbk"))
    code, out, err = run([str(path), "--json"], capsys)
    assert code == 0 and out.count("\n") == 1
    found = json.loads(out)
    assert {name: found[name] for name in ("read", "accepted", "quarantined", "duplicates")} == {
        "read": 4,
        "accepted": 1,
        "quarantined": 2,
        "duplicates": 1,
    }
    assert found["encoding"] == "gb18030"
    assert found["reasons"] == {"column_count": 1, "out_of_range": 1}
    assert "record 2, line 3: column_count" in err
    assert run([str(path), "--strict"], capsys)[0] == 3
    assert run([str(path), "--show", "0"], capsys)[2] == ""


def test_a_file_that_is_refused_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("request_id,txt\n1,a\n")
    code, out, err = run([str(path), "--json"], capsys)
    assert code == 3 and "'text'" in err and "'txt'" in err
    assert json.loads(out)["error"]["type"] == "SourceRefused"


def test_wrong_use_is_told_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("request_id,text\n1,a\n")
    for flag, value in (("encoding", "x"), ("delimiter", "::"), ("kind", "xml"), ("show", "-1")):
        code, _, err = run([str(path), f"--{flag}", value], capsys)
        assert code == 2 and flag in err
