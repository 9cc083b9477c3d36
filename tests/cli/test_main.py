"""The entry: help is quick and complete, wrong usage is 2."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app

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
    "selftest",
    "convert",
]


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


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_and_each_option(command: str) -> None:
    app = build_app()
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    options = [line for line in shown.output.splitlines() if line.startswith("  --")]
    assert options
    for line in options:
        assert len(line.split("  ")) > 2, f"no help text: {line}"


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["run"], ["run", "m", "--top-k", "many"], ["list", "--no"]]
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(build_app(), arguments).exit_code == 2


def test_version() -> None:
    shown = firsthand("--version")
    assert (shown.returncode, shown.stdout) == (0, "firsthand 0.1.0\n")


def test_help_answers_at_once() -> None:
    """Its own processor time, so that a busy machine does not decide; the best of three."""
    times_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert firsthand("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times_s) < 0.2
