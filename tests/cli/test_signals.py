"""A signal at any moment of a start: the command ends soon, without a traceback or a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model

pytestmark = pytest.mark.native

LIMIT_S = 30.0  # of a machine that is busy with something else
MARK = "FIRSTHAND_TEST_MARK"
COMMANDS = {
    "run": ("--temperature", "0", "--ignore-end", "--max-tokens", "200", "--", "x"),
    "chat": (),
    "serve": ("--port", "0"),
}
ENDS = {  # by the signal, by a clean end, or as an interrupted command
    signal.SIGINT: (-signal.SIGINT, 0, 130),
    signal.SIGTERM: (-signal.SIGTERM, 0),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("micro"))


@dataclass
class Start:
    """A command that says which modules it has loaded."""

    process: subprocess.Popen[str]
    mark: str
    said: str = ""

    def until_loading(self, num_more: int) -> None:
        """Until it has loaded so many modules after the first that `main` asks for, or has ended.
        Python's own start is not ours."""
        assert self.process.stderr is not None
        is_ours = False
        for line in self.process.stderr:
            self.said += line
            is_ours = is_ours or "typer" in line
            num_more -= is_ours and line.startswith("import time:")
            if num_more <= 0:
                return

    def until(self, words: str) -> None:
        """Until it says that, beside what it loads."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if words in line and not line.startswith("import time:"):
                return
        raise AssertionError(self.said)

    def end(self, sent: signal.Signals) -> None:
        self.process.send_signal(sent)
        assert self.process.stderr is not None
        _, said = self.process.communicate(timeout=LIMIT_S)
        self.said += said
        told = "".join(
            line for line in self.said.splitlines(True) if not line.startswith("import time:")
        )
        assert self.process.returncode in ENDS[sent], told
        assert "Traceback" not in told and "Exception ignored" not in told, told
        until_s = time.monotonic() + LIMIT_S
        while left := [pid for pid in marked(self.mark) if pid != self.process.pid]:
            assert time.monotonic() < until_s, f"left behind: {left}"
            time.sleep(0.01)


@contextmanager
def starting(command: str, model: Path) -> Iterator[Start]:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "firsthand.cli.entry", command, str(model),
         *COMMANDS[command]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=os.environ | {MARK: mark, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        yield Start(process, mark)
    finally:
        process.kill()
        process.wait()


def marked(mark: str) -> list[int]:
    """The processes that were started by a start, and those by them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("command", COMMANDS)
def test_ops_6_ctrl_c_while_modules_load(command: str, model: Path) -> None:
    with starting(command, model) as start:
        start.until_loading(40)
        start.end(signal.SIGINT)


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("num_modules", [1, 100, 400])
def test_sighup_ends_no_server_while_modules_load(num_modules: int, model: Path) -> None:
    """It asks for the settings to be read again, and is remembered as soon as there are some."""
    with starting("serve", model) as start:
        start.until_loading(num_modules)
        start.process.send_signal(signal.SIGHUP)
        start.until("listens on")
        start.process.send_signal(signal.SIGHUP)
        start.until("ready")
        start.end(signal.SIGTERM)
        assert start.process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("sent", ENDS, ids=lambda sent: sent.name)
@pytest.mark.parametrize("command", COMMANDS)
def test_ops_6_a_signal_at_every_moment(command: str, sent: signal.Signals, model: Path) -> None:
    """While modules load, from the first to the last; then through the load and the first steps.
    A command that has come to its end by itself is over the last moment."""
    for num_modules in (1, 5, 25, 60, 120, 200, 300, 450, 700):
        with starting(command, model) as start:
            start.until_loading(num_modules)
            start.end(sent)
    for delay_s in (0.03, 0.1, 0.2, 0.4, 0.8, 1.5):
        with starting(command, model) as start:
            start.until_loading(100)
            time.sleep(delay_s)
            start.end(sent)
