"""A thousand streams that wait cost little memory, and no more the second time.

Owns: proof of that goal, with a real engine. Read next: `test_connections.py`.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.processes import Server, started

pytestmark = pytest.mark.native

NUM_STREAMS = 1000
LIMIT_BYTES = 50 * 10**6  # of the process that they are connected to
ENGINE_LIMIT_BYTES = 20 * 10**6
WAIT_S = 120.0
BODY = b'{"prompt": "hi", "max_tokens": 400, "stream": true}'
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
) + BODY


@contextmanager
def many_files() -> Iterator[None]:
    """As many as the system allows, for this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def metric(server: Server, name: str) -> float:
    lines = httpx.get(server.url + "/metrics", timeout=WAIT_S).text.splitlines()
    (found,) = [float(line.split()[1]) for line in lines if line.startswith(name + "{")]
    return found


def wait_for(server: Server, name: str, value: float) -> None:
    until = time.perf_counter() + WAIT_S
    while (found := metric(server, name)) != value:
        assert time.perf_counter() < until, f"{name} is {found}, not {value}"
        time.sleep(0.05)


@contextmanager
def open_streams(server: Server, number: int) -> Iterator[None]:
    admitted = metric(server, "firsthand_admitted_total")
    with ExitStack() as stack:
        for _ in range(number):
            opened = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            opened.sendall(REQUEST)
        wait_for(server, "firsthand_admitted_total", admitted + number)
        yield
    wait_for(server, "firsthand_admitted_open", 0)


@pytest.mark.slow
def test_a_thousand_idle_streams_take_less_than_50_megabytes_however_often(
    tmp_path: Path, micro_folder: Path
) -> None:
    flags = "--max-num-seqs 1 --max-num-queued-reqs 2000 --no-shed --max-queue-wait 0"
    with many_files(), started(tmp_path, micro_folder, *flags.split()) as server:
        server.wait_ready(60)
        with open_streams(server, 50):  # what is loaded once, whoever comes
            pass
        (engine,) = server.engine_pids()
        before, engine_before = map(resident_bytes, (server.process.pid, engine))
        for _ in range(2):
            with open_streams(server, NUM_STREAMS):
                assert metric(server, "firsthand_admitted_open") > 0.5 * NUM_STREAMS
                assert resident_bytes(server.process.pid) - before < LIMIT_BYTES
                assert resident_bytes(engine) - engine_before < ENGINE_LIMIT_BYTES
