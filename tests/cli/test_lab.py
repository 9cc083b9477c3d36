"""The command lab: its list, a run in both languages and as JSON, a figure, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from firsthand.cli.lab import wrapped
from firsthand.cli.main import build_app
from firsthand.labs.registry import labs

pytestmark = pytest.mark.native
QUICK = "window-timer"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(build_app("lab"), ["lab", *arguments])


def test_without_a_name_all_are_listed() -> None:
    listed = invoke("--lang", "en")
    assert listed.exit_code == 0
    assert all(
        lab.name in listed.stdout and lab.title.en in listed.stdout for lab in labs().values()
    )
    found = json.loads(invoke("--json", "--lang", "zh").stdout)
    assert [one["title"] for one in found["labs"]] == [one.title.zh for one in labs().values()]


def test_a_lab_is_run_and_told_in_both_languages() -> None:
    lab = labs()[QUICK]
    english, chinese = (invoke(QUICK, "--lang", language) for language in ("en", "zh"))
    assert english.exit_code == chinese.exit_code == 0
    assert lab.title.en in english.stdout
    assert "the fault shows, ours does not" in english.stdout
    assert lab.title.zh in chinese.stdout
    assert lab.places[0] in chinese.stdout


def test_a_paragraph_is_wrapped_by_columns() -> None:
    english = "Cause: one two three"
    assert wrapped(english, 96) == [english]
    assert wrapped(english, 12) == ["Cause: one", "  two three"]
    chinese = wrapped("原因：一二三四。五六 token 七八", 16)
    assert chinese == ["原因：一二三四。", "  五六 token 七", "  八"]
    assert wrapped("原因：一二三四五。", 16) == ["原因：一二三四", "  五。"]
    assert wrapped("原因：一二三“四五”", 14) == ["原因：一二三", "  “四五”"]
    assert wrapped("Text: one\ntwo", 96) == ["Text: one two"]
    assert [len(line) for line in wrapped("x" * 200, 96)] == [80, 82, 42]


def test_as_json_it_is_one_line_with_what_was_seen(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = tmp_path / "seen.svg"
    done = invoke(QUICK, "--json", "--lang", "en", "--figure", str(figure))
    found = json.loads(done.stdout)
    assert found["name"] == QUICK
    assert found["ran_s"] >= 0
    seen = found["evidence"]
    assert seen["fault_shows"] >= seen["limit"] > seen["ours_does_not"]
    assert seen["holds"] is True
    assert figure.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "lab: must be one of"),
        ((QUICK, "--lang", "fr"), "lang: must be one of en, zh"),
        ((QUICK, "--all"), "all: goes without a name"),
        ((QUICK, "--figure", "seen.gif"), "must end in .svg, .png"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
