"""The helper processes of a server, ended from outside: nothing of them is left, others follow.

Owns: proof of `Service.tick`. Read next: `test_losses.py`, for the engine's own process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.processes import Server, command_of, started

pytestmark = [
    pytest.mark.native,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of processes"),
]
LIMIT_S = 60.0
HELPERS = ("template_worker", "grammar_worker")


@pytest.fixture
def server(tmp_path: Path, micro_folder: Path) -> Iterator[Server]:
    with started(tmp_path, micro_folder) as found:
        found.wait_ready(60)
        yield found


def children(server: Server) -> dict[int, str]:
    """Of all threads of the server; a zombie has no command any more."""
    found = {}
    for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
        for pid in (thread / "children").read_text().split():
            try:
                found[int(pid)] = command_of(int(pid))
            except OSError:
                continue
    return found


def ask(server: Server) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages, "max_tokens": 8, "structured_outputs": {"regex": "a{1,9}"}}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text


def test_a_helper_that_is_killed_is_no_zombie_and_is_replaced(server: Server) -> None:
    ask(server)
    helpers = [pid for pid, what in children(server).items() if any(h in what for h in HELPERS)]
    assert len(helpers) >= 2
    for pid in helpers:
        os.kill(pid, signal.SIGKILL)
    until = time.perf_counter() + LIMIT_S
    while set(helpers) & children(server).keys():
        assert time.perf_counter() < until, "a zombie stays"
        time.sleep(0.02)
    ask(server)
    assert all(children(server).values()), "one of them is a zombie"
