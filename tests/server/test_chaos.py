"""Faults in a server are its owner's to allow, each with its limits.

Owns: the refusals, and the command's words. May not know: what a fault does.
Read next: `../observe/test_handbook_live.py`, which puts each in.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.errors import InvalidRequest
from firsthand.server.chaos import FAULTS, Chaos

CLI = Path("docs/cli.md")


def begin(
    chaos: Chaos,
    name: str,
    seconds: str | None = None,
    amount: str | None = None,
    unit: str | None = None,
) -> dict[str, object]:
    return asyncio.run(chaos.begin((), name, seconds, amount, unit))


def test_without_the_setting_nothing_is_put_in() -> None:
    with pytest.raises(InvalidRequest, match="started without --chaos"):
        begin(Chaos(allowed=False), "slow")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("quake",), "fault"),
        (("slow", "soon"), "seconds"),
        (("slow", "-1"), "seconds"),
        (("slow", "nan"), "seconds"),
        (("slow", "1", "100", "share"), "share"),
        (("hang", "1", "100", "ms"), "ms"),
        (("client", "1", "0"), "num"),
    ],
)
def test_what_is_no_fault_is_refused_by_name(given: tuple[str, ...], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        begin(Chaos(allowed=True), *given)
    assert raised.value.field == field


def test_a_fault_has_defaults_and_is_told_as_it_is_in_effect() -> None:
    found = begin(Chaos(allowed=True), "slow", amount="2200", unit="ms")
    assert found == {
        "fault": "slow",
        "seconds": 60.0,
        "ms": 2200.0,
        "about": FAULTS["slow"].about,
        "models": [],
    }


@pytest.mark.parametrize(
    "arguments", [("slow",), ("slow", "--admin-socket", "/nowhere", "--ms", "1", "--share", "1")]
)
def test_the_command_refuses_before_it_asks(arguments: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(build_app(), ["chaos", *arguments])
    assert shown.exit_code == 2, shown.output


def test_a_socket_that_is_not_there_is_told(tmp_path: Path) -> None:
    at = str(tmp_path / "admin")
    shown = CliRunner().invoke(build_app(), ["chaos", "slow", "--admin-socket", at])
    assert shown.exit_code == 1
    assert "cannot be reached" in shown.stderr


def test_the_page_has_every_fault() -> None:
    page = CLI.read_text(encoding="utf-8")
    for kind in FAULTS.values():
        assert f"| `{kind.name}` | {kind.about}" in page
