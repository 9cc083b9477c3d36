"""Ctrl-C ends a generation: what was generated is printed, and the exit code is 130."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firsthand.cli.main import build_app
from firsthand.cli.micro_model import write_micro_model
from firsthand.engine.worker import EventStream
from firsthand.request import TokenEvent

pytestmark = pytest.mark.native


def start(*arguments: str) -> subprocess.Popen[str]:
    """A command in a session of its own, as a terminal would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "firsthand.cli.main", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


def endless(folder: Path) -> list[str]:
    """Options with which a generation of the micro-model is still running when we interrupt."""
    return [str(folder), "--temperature", "0", "--ignore-end", "--max-tokens", "100000"]


@pytest.fixture
def slow_model(tmp_path: Path) -> Path:
    """The micro-model with a context so long that it takes minutes to fill."""
    write_micro_model(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"max_position_embeddings": 100_000}
    path.write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_run_prints_what_there_is_and_ends(slow_model: Path) -> None:
    command = start("run", *endless(slow_model), "--", "x")
    assert command.stdout is not None
    first = command.stdout.read(1)
    command.send_signal(signal.SIGINT)
    rest, said = command.communicate(timeout=30)
    assert command.returncode == 130, said
    assert (first + rest).endswith("\n")
    assert "Traceback" not in said


def test_run_with_json_still_prints_one_object(
    slow_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes while the fourth token is waited for."""
    waits = iter(range(100))

    def interrupted(stream: EventStream) -> TokenEvent:
        if next(waits) == 3:
            raise KeyboardInterrupt
        return next_event(stream)

    next_event = EventStream.__next__
    monkeypatch.setattr(EventStream, "__next__", interrupted)
    shown = CliRunner().invoke(build_app(), ["run", *endless(slow_model), "--json", "--", "x"])
    assert shown.exit_code == 130
    (line,) = shown.stdout.splitlines()
    done = json.loads(line)
    assert done["finish_reason"] == "cancelled"
    assert len(done["token_ids"]) == done["usage"]["completion_tokens"] == 3


def test_chat_goes_on(slow_model: Path) -> None:
    command = start("chat", *endless(slow_model))
    assert command.stdin is not None
    assert command.stdout is not None
    command.stdin.write("one\n")
    command.stdin.flush()
    assert command.stdout.read(1)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate("/reset\n/bye\n", timeout=30)
    assert command.returncode == 0, said
    assert "Traceback" not in said
