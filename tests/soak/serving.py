"""A whole `firsthand serve` in a process of its own, and loads against it.

Owns: `Server`, with what an operator can see of it: metrics, memory, descriptors, its engine.
May not know: what is expected of it. Read next: `clients.py`, `test_overload.py`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import httpx

from tests.soak.clients import Load, Outcome

LIMIT_S = 120.0  # of a machine that is busy with something else
ROOT = Path(__file__).parents[2]
ENTRY = "firsthand.cli.entry"


class Server:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log
        self.url = f"http://127.0.0.1:{port}"

    def status(self, path: str = "/readyz") -> int:
        """0: nobody is there."""
        try:
            return httpx.get(self.url + path, timeout=10, verify=False).status_code
        except httpx.TransportError:
            return 0

    def metrics(self) -> dict[str, float]:
        """Of each name the sum over its labels."""
        found: dict[str, float] = {}
        for line in httpx.get(self.url + "/metrics", timeout=10, verify=False).text.splitlines():
            matched = re.match(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if matched and not line.startswith("#"):
                name = matched[1]
                if name == "firsthand_kv_blocks":
                    name += "_used" if 'state="used"' in matched[2] else "_free"
                found[name] = found.get(name, 0.0) + float(matched[3])
        return found

    def is_empty(self) -> bool:
        """No request, no place and no block is taken."""
        found = self.metrics()
        return not any(
            found[name]
            for name in (
                "firsthand_requests_running",
                "firsthand_requests_waiting",
                "firsthand_admitted_open",
                "firsthand_kv_blocks_used",
            )
        )

    @property
    def engine_pid(self) -> int | None:
        """The child that loads the model; None between two of them."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        for child in children:
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if b"firsthand.generation.child" in command:
                return int(child)
        return None

    def rss_bytes(self) -> int:
        """Resident memory of the server and of its engine."""
        return sum(map(rss_bytes, filter(None, (self.process.pid, self.engine_pid))))

    def num_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @contextmanager
    def under(self, load: Load) -> Iterator[Callable[[], list[Outcome]]]:
        """Clients are at work meanwhile; the call waits for them and gives what they saw."""
        clients = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.clients", json.dumps(asdict(load))],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

        def outcomes() -> list[Outcome]:
            said, _ = clients.communicate(timeout=load.limit_s + LIMIT_S)
            assert clients.returncode == 0
            return [Outcome(**one) for one in json.loads(said)]

        try:
            yield outcomes
        finally:
            clients.kill()
            clients.communicate()

    def play(self, load: Load) -> list[Outcome]:
        with self.under(load) as outcomes:
            return outcomes()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def rss_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def until(holds: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> float:
    """Wait for a condition; how long that took."""
    began_s = time.perf_counter()
    while not holds():
        assert time.perf_counter() - began_s < limit_s, what
        time.sleep(0.01)
    return time.perf_counter() - began_s


def _be_as_urgent(server: Server) -> None:
    """The engine is a session of its own, which the system schedules as one: where this session was
    given another share of the machine, the engine gets the same."""
    own, its = (Path(f"/proc/{pid}/autogroup") for pid in ("self", server.engine_pid))
    with suppress(OSError):  # a system without such groups has no file, or one that takes nothing
        if words := own.read_text(encoding="ascii").split():  # and an empty one outside any group
            its.write_text(words[-1], encoding="ascii")


@contextmanager
def served(
    model: Path, folder: Path, *flags: str, program: Sequence[str] = ("-m", ENTRY)
) -> Iterator[Server]:
    """`program`: what Python is to run in place of the command."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "serve.log"
    command = [
        sys.executable, *program, "serve", str(model), "--port", str(port),
        "--log-format", "json", "--threads", "1", *flags,
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    server = Server(process, port, log)
    try:
        until(
            lambda: process.poll() is not None or server.status() == 200, "it did not become ready"
        )
        assert process.poll() is None, log.read_text(encoding="utf-8")
        _be_as_urgent(server)
        yield server
    finally:
        process.kill()  # its engine ends with it
        process.wait()
