"""The real process of a server, for as long as a test needs it.

Owns: `started`, its log, its children, streams from it. May not know: what is served.
Read next: `test_lifecycle.py`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from firsthand.cli.micro_model import write_micro_model

PROGRAM = "from firsthand.cli.main import main; main()"


class Server:
    """`secure` is how a client trusts it, where it speaks TLS."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        port: int,
        log: Path,
        secure: ssl.SSLContext | None = None,
    ) -> None:
        self.process, self.port, self.log = process, port, log
        self.url = f"{'http' if secure is None else 'https'}://127.0.0.1:{port}"
        self.verify: ssl.SSLContext | bool = True if secure is None else secure

    def status(self, path: str = "/readyz") -> int:
        try:
            return httpx.get(self.url + path, timeout=5, verify=self.verify).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self, limit_s: float = 30.0) -> None:
        until = time.perf_counter() + limit_s
        while self.status() != 200:
            assert time.perf_counter() < until, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def events(self) -> list[dict[str, object]]:
        """Of the lines that are written to their end."""
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]

    def told(self, event: str, limit_s: float = 10.0) -> list[dict[str, object]]:
        """The events of that name, once there is one: a line may come after what it tells of."""
        until = time.monotonic() + limit_s
        while not (found := [line for line in self.events() if line.get("event") == event]):
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)
        return found

    def engine_pids(self) -> list[int]:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def end(self, number: signal.Signals, limit_s: float) -> tuple[int, float]:
        """The exit code and how long it took; no child is left."""
        children = self.engine_pids()
        began_s = time.perf_counter()
        self.process.send_signal(number)
        code = self.process.wait(limit_s)
        took_s = time.perf_counter() - began_s
        while left := [command_of(pid) for pid in children if runs(pid)]:
            assert time.perf_counter() - began_s < limit_s, left
            time.sleep(0.02)
        return code, took_s


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def runs(pid: int) -> bool:
    """Whether the process is there, and not only its exit code."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@contextmanager
def started(
    folder: Path, model: Path, *flags: str, program: str = PROGRAM, **variables: str
) -> Iterator[Server]:
    """A server of one model."""
    arguments = (str(model), "--served-model-name", "micro", *flags)
    with launched(folder, *arguments, program=program, **variables) as server:
        yield server


@contextmanager
def launched(
    folder: Path,
    *arguments: str,
    program: str = PROGRAM,
    verb: Sequence[str] = ("serve",),
    **variables: str,
) -> Iterator[Server]:
    """`firsthand serve`, or another verb that does, with its log in the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log"
    command = [
        sys.executable, "-c", program, *verb,
        "--port", str(port), "--log-format", "json", *arguments,
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, text=True, env=os.environ | variables
        )
    try:
        yield Server(process, port, log)
    finally:
        process.kill()
        process.wait()


@contextmanager
def streams(server: Server, num: int, max_tokens: int) -> Iterator[list[httpx.Response]]:
    """Streams that have begun."""
    with ExitStack() as held:
        yield [held.enter_context(stream(server, max_tokens)) for _ in range(num)]


@contextmanager
def stream(server: Server, max_tokens: int) -> Iterator[httpx.Response]:
    body = {"prompt": "a", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as answer:
        assert answer.status_code == 200
        yield answer


def with_golden(folder: Path) -> tuple[Path, dict[str, str]]:
    """A micro model whose golden tokens are recorded, and the environment in which they are."""
    home = {"FIRSTHAND_HOME": str(folder / "home")}
    (folder / "model").mkdir()
    model = write_micro_model(folder / "model")
    record = ("serve", str(model), "--threads", "1", "--record-golden")
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *record],
        env=os.environ | home,
        check=True,
        capture_output=True,
    )
    return model, home
