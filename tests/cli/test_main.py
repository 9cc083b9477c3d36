"""The entry: help is quick and complete, wrong usage is 2."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app, run_command

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    "run",
    "chat",
    "pull",
    "list",
    "show",
    "rm",
    "inspect",
    "tokenize",
    "trace-step",
    "eval",
    "profile",
    "verify",
    "selftest",
    "convert",
    "merge",
]
BENCH = ["bench latency", "bench throughput", "bench startup", "bench ablate", "bench compare"]
BENCH += ["bench serve", "bench knee", "plan capacity", "plan autoscale"]


def firsthand(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firsthand.cli.main", *arguments],
        capture_output=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
    )


def test_help_names_every_command() -> None:
    shown = CliRunner().invoke(build_app(), ["--help"])
    assert shown.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in shown.output


def help_of(command: str) -> dict[str, str]:
    """Its options, each with its help text, from a page so wide that none is broken."""
    shown = CliRunner().invoke(build_app(), [*command.split(), "--help"], terminal_width=300)
    assert shown.exit_code == 0
    joined = re.sub(r"\n {10,}", "  ", shown.output)  # a long option stands above its text
    lines = [line.strip() for line in joined.splitlines() if line.startswith("  --")]
    assert lines
    parts = [re.split(r"  +", line, maxsplit=1) for line in lines]
    return {part[0]: part[1] if len(part) == 2 else "" for part in parts}


@pytest.mark.parametrize("command", [*COMMANDS, *BENCH])
def test_each_command_explains_each_option_and_its_default(command: str) -> None:
    """A lone flag has no default to tell: it is off."""
    for option, text in help_of(command).items():
        assert text, f"no help text: {option}"
        if " " in option and not text.endswith("[required]"):
            assert "default: " in text, f"no default: {option}"


def test_help_shows_the_defaults_that_the_command_has() -> None:
    assert "default: 256" in help_of("run")["--max-tokens <int>"]
    chat = help_of("chat")
    assert "default: 1024" in chat["--max-tokens <int>"]
    assert "default: repetition-guard" in chat["--repetition-guard / --no-repetition-guard"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("firsthand run --te", "--temperature"),
        ("firsthand release dr", "drill"),
        ("firsthand data quarantine ls --js", "--json"),
    ],
)
def test_a_shell_completes_verbs_and_options(line: str, offered: str) -> None:
    code = "import sys; sys.argv = ['firsthand']; from firsthand.cli.main import main; main()"
    asked = {
        "_FIRSTHAND_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **asked}, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == [offered]


WRONG = [
    ["no-such-command"],
    ["run"],
    ["run", "m", "--top-k", "many"],
    ["list", "--no"],
    ["chat", "m", "--json"],
]


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 2
    shown = capsys.readouterr()
    assert "Usage: " in shown.err
    if "--json" not in arguments:
        assert shown.out == ""


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_usage_with_json_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*arguments, "--json"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)["error"]
    assert said["type"] == "UsageError"
    assert said["message"]


def test_a_command_that_fails_has_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["show", "no-such-model", "--json"]) == 4
    assert run_command(["--help"]) == 0


@pytest.mark.parametrize(
    "place", ["firsthand.cli.main.build_app", "firsthand.weights.listing.list_models"]
)
def test_an_interrupt_is_one_line_wherever_it_comes(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    assert run_command(["list"]) == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


@pytest.mark.parametrize(
    ("command", "usage"), [("run", "MODEL [PROMPT]"), ("convert", "SRC DST"), ("rm", "NAME")]
)
def test_usage_has_plain_names(command: str, usage: str) -> None:
    shown = CliRunner().invoke(build_app(), [command, "--help"])
    assert shown.output.splitlines()[0].endswith(f"{command} [OPTIONS] {usage}")


def test_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shown = firsthand("--version")
    assert (shown.returncode, shown.stdout) == (0, f"firsthand {project['version']}\n")


def test_help_answers_at_once() -> None:
    """Its own processor time, so that a busy machine does not decide; the best of three."""
    times_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert firsthand("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times_s) < 0.2
