"""`firsthand top`: of a server that tells much, one that tells nonsense, and on a terminal.

Owns: proof of `cli/top.py`. Read next: `test_remote.py`.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from firsthand.cli.micro_model import write_micro_model
from firsthand.cli.top import Seen, bar, drawn
from tests.cli.test_commands import call, called
from tests.cli.test_remote import Other, running
from tests.server.processes import started

ROW = {
    "request_id": "request-1", "class_index": 1, "arrival_s": 8.0,
    "num_prompt_tokens": 5, "num_known": 9, "num_computed": 8, "num_preemptions": 2,
    "blocks": [[0, 2], [5, 1]],
}  # fmt: skip
STATE: dict[str, Any] = {
    "at_s": 10.0,
    "models": [
        {
            "name": "micro",
            "state": {"status": "ready"},
            "model": {"sha256": "ab" * 32, "max_sequences": 8, "context_length": 512},
            "load": {
                "num_running": 1, "num_waiting": 3, "waiting_by_class": [0, 3, 0],
                "num_used_blocks": 8, "num_blocks": 32, "drawn_tokens_per_s": 12.34,
            },
            "memory": {"peak_rss_bytes": 3 << 20},
            "pace": {"paused": True},
            "names": {"request-1": "call\x1b[31mer"},
            "steps": [{"ms": [0.1, 0.1, 1.6, 0.1, 0.1]}],
            "picture": {"at_s": 10.0, "running": [ROW], "waiting": [ROW] * 30},
        }
    ],
    "checks": [{"name": "queue", "ok": False, "detail": "full"}],
    "alerts": [{"alert": "Slow", "severity": "P2", "ended_s": None}],
    "degradation": {"micro": 2},
    "gpus": [{"gpu": 0, "busy": 0.25, "used_bytes": 3 << 30, "num_bytes": 8 << 30, "watts": 210.5}],
}  # fmt: skip


def plain(seen: Seen, width: int = 100) -> str:
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(drawn(seen))
    return capture.get()


def test_everything_is_there_in_plain_text() -> None:
    seen = Seen()
    seen.take(STATE)
    text = plain(seen)
    for part in (
        "micro  ready  paused", "sha256 abababababab", "running 1 of 8", "normal 3", "12.3",
        "8 of 32 blocks", "3.0 MiB", "forward 80%", "call·[31mer", "2.0 s", "and 19 more",
        "check fails: queue (full)", "P2 Slow: fires", "level 2 of 4",
        "GPU 0", "25%", "3.0 GiB of 8.0 GiB", "210.5 W",
    ):  # fmt: skip
        assert part in text, text
    assert "\x1b" not in text
    assert max(map(len, plain(seen, 40).splitlines())) <= 40


def test_news_change_what_they_name_and_nothing_else() -> None:
    seen = Seen()
    seen.take(STATE)
    seen.take({"models": [{"name": "micro", "state": {"status": "restarting"}}], "checks": []})
    text = plain(seen)
    assert "restarting" in text and "running 1 of 8" in text and "check fails" not in text


@pytest.mark.parametrize(
    "nonsense",
    [{}, {"models": 1}, {"models": [1, {"name": 5, "load": [], "picture": {"running": [{}, 3]}}]}],
)
def test_nonsense_is_a_dash(nonsense: dict[str, Any]) -> None:
    seen = Seen()
    seen.take(
        nonsense | {"checks": "x", "alerts": None, "degradation": 7, "gpus": [{"watts": "x"}]}
    )
    assert plain(seen)


def test_into_a_pipe_it_is_told_once(other_state: Other) -> None:
    shown = call("top", "--url", other_state.url)
    assert "micro  ready" in shown.stdout and "\x1b" not in shown.stdout
    assert called("top", "--url", f"{other_state.url}/v1") == STATE
    assert [path for path, _, _ in other_state.asked] == ["/firsthand/engine/state"] * 2


@pytest.fixture
def other_state() -> Any:
    class Telling(Other):
        def handler(self) -> Any:
            made = super().handler()
            telling = self

            class Handler(made):  # type: ignore[misc,valid-type]
                def do_GET(self) -> None:
                    telling.asked.append((self.path, None, None))
                    self.answer(json.dumps(STATE).encode(), 200)

            return Handler

    with running(Telling()) as made:
        yield made


def test_a_bar_is_as_long_as_its_share() -> None:
    assert (bar(0.5, 4), bar(2.0, 4), bar(-1.0, 4)) == ("██░░", "████", "░░░░")


@pytest.mark.native
@pytest.mark.process
@pytest.mark.slow
def test_on_a_terminal_it_follows_its_size_and_ends_quietly(
    tmp_path: Path,
) -> None:
    (tmp_path / "micro").mkdir()
    model = write_micro_model(tmp_path / "micro")
    with started(tmp_path, model, "--threads", "1") as server:
        server.wait_ready()
        with on_a_terminal("top", "--url", server.url) as (ours, process):
            told = read_until(ours, b"every check holds")
            assert b"\x1b[?1049h" in told  # the other screen, which is given back
            resize(ours, 40)
            process.send_signal(signal.SIGWINCH)
            narrow = read_until(ours, b"every check holds")
            assert b"micro" in narrow
            process.send_signal(signal.SIGINT)
            last = read_until(ours, b"\x1b[?1049l")
            assert b"Traceback" not in last and b"error" not in last
            assert process.wait(20) == 0
        talk = ("chat", "--url", server.url, "--watch", "--max-tokens", "200", "--ignore-end")
        with on_a_terminal(*talk) as (ours, process):
            read_until(ours, b"> ")
            os.write(ours, b"hello\n")
            read_until(ours, b"tokens/s")  # of the picture, beside the answer
            read_until(ours, b"> ")  # it has gone, and the next message is awaited
            os.write(ours, b"/bye\n")
            assert process.wait(20) == 0


@contextmanager
def on_a_terminal(*words: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The command on a terminal of a hundred columns; our end of it, and the process."""
    ours, theirs = pty.openpty()
    resize(ours, 100)
    process = subprocess.Popen(
        [sys.executable, "-c", "from firsthand.cli.main import main; main()", *words],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (["m"], "goes with --url"),
        (["--url", "http://127.0.0.1:9", "--model", "m"], "needs a terminal"),
    ],
)
def test_a_pane_needs_a_server_and_a_terminal(where: list[str], why: str) -> None:
    assert why in call("chat", *where, "--watch", stdin="", code=2).stderr


def resize(terminal: int, columns: int) -> None:
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))


def read_until(terminal: int, wanted: bytes, limit_s: float = 30.0) -> bytes:
    found, until = b"", time.monotonic() + limit_s
    while wanted not in found:
        assert time.monotonic() < until, found
        found += os.read(terminal, 65536)
    return found
