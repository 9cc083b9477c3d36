"""Standard streams that are closed, full or broken, and a terminal, in processes of their own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from firsthand.cli.micro_model import write_micro_model

pytestmark = pytest.mark.process
FIRSTHAND = [sys.executable, "-m", "firsthand.cli.main"]
GREEDY = ["--temperature", "0", "--max-tokens", "6", "--ignore-end"]


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which "$@" is a command of ours."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *FIRSTHAND, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_micro_model(tmp_path))


@pytest.mark.parametrize(("redirect", "reason"), [(">/dev/full", "No space"), (">&-", "Bad file")])
@pytest.mark.parametrize("arguments", [["--help"], ["list", "--json"]])
def test_an_output_that_cannot_be_written_is_one_line(
    redirect: str, reason: str, arguments: list[str]
) -> None:
    done = shell(f'"$@" {redirect}', *arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert reason in line


@pytest.mark.native
@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_run_too(model: str, redirect: str) -> None:
    done = shell(f'"$@" {redirect}', "run", model, "Hello", *GREEDY)
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["loading", "error"]


def test_what_only_fails_at_the_end_is_told_as_well() -> None:
    """A short line stays in the buffer until the process ends."""
    done = shell('env -u PYTHONUNBUFFERED "$@" >/dev/full', "--version")
    assert done.returncode == 1
    assert done.stderr == "error: standard output: No space left on device\n"


@pytest.mark.native
@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_messages_that_go_nowhere_cost_no_data(model: str, redirect: str) -> None:
    whole = shell('"$@"', "run", model, "Hello", *GREEDY)
    mute = shell(f'"$@" {redirect}', "run", model, "Hello", *GREEDY)
    assert (mute.returncode, mute.stdout) == (0, whole.stdout)
    assert shell(f'"$@" {redirect}', "run", model, "Hello", "--top-p", "0").returncode == 2


@pytest.mark.native
def test_a_closed_input_is_an_empty_one(model: str) -> None:
    done = shell('"$@" <&-', "run", model)
    assert done.returncode == 2
    assert done.stderr.endswith("error: prompt: must hold at least one token\n")


@pytest.mark.native
@pytest.mark.parametrize("arguments", [["run"], ["inspect", "--plan", "--tensors"], ["--help"]])
def test_a_reader_that_has_had_enough_is_no_error(model: str, arguments: list[str]) -> None:
    more = {"run": [model, "Hello", *GREEDY], "inspect": [model], "--help": []}[arguments[0]]
    # The reader is gone before the first byte comes.
    line = 'exec 3> >(exec true); sleep 0.2; "$@" >&3; exit $?'
    done = shell(line, *arguments, *more)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if line != "loading"] == []


class Terminal:
    """A command on a terminal; what is typed into it, and what it shows."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = os.openpty()
        self._command = subprocess.Popen(
            [*FIRSTHAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "60"},
        )
        os.close(theirs)
        self._shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._command.kill()
        self._command.wait()
        os.close(self._ours)

    def wait_for(self, text: str) -> None:
        """Until it shows `text` after what was waited for before."""
        while text not in self._shown:
            assert self._read(), f"no {text!r} in {self._shown!r}"
        self._shown = self._shown.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> tuple[int, str]:
        """The exit code and what else it showed."""
        while self._read():
            pass
        return self._command.wait(timeout=30), self._shown

    def _read(self) -> bool:
        """Whether there was more within a while; its end is an error on some systems."""
        if not select.select([self._ours], [], [], 30)[0]:
            return False
        try:
            piece = os.read(self._ours, 65536)
        except OSError:
            return False
        self._shown += piece.decode("utf-8", "replace")
        return bool(piece)


@pytest.mark.native
def test_chat_on_a_terminal_edits_lines_and_remembers_them(model: str) -> None:
    pytest.importorskip("readline")
    with Terminal("chat", model, *GREEDY) as terminal:
        terminal.wait_for("> ")
        terminal.type("/rest\r")
        terminal.wait_for("unknown command /rest; there are /reset and /bye")
        terminal.wait_for("> ")
        terminal.type("onX\x7fe\r")
        terminal.wait_for("max_tokens 6 reached")
        terminal.wait_for("> ")
        terminal.type("\x1b[A")  # arrow up
        terminal.wait_for("one")
        terminal.type("\x15/bye\r")
        assert terminal.end()[0] == 0


@pytest.mark.native
def test_a_table_keeps_to_the_terminal(model: str) -> None:
    with Terminal("inspect", model, "--tensors") as terminal:
        terminal.wait_for("TENSOR  ")
        code, shown = terminal.end()
    rows = shown.splitlines()[1:]
    assert code == 0
    assert max(map(len, rows)) == 60
    assert any("…" in row for row in rows)


@pytest.mark.native
def test_a_message_takes_the_place_of_progress(model: str) -> None:
    """The terminal's line is cleared first, so that nothing stands glued to an error."""
    with Terminal("run", model, "x" * 600) as terminal:
        code, shown = terminal.end()
    assert code == 2
    assert "\x1b[Kerror: " in shown
