"""A server of the checklist's own: started with the model, asked, drained, and gone at the end.

Owns: its process, its key, its log, and how it is asked.
May not know: what is asked of it.
Read next: `served.py`.

It listens on this machine alone, on any free port, with a small queue, and says nothing to the
person: what it logs is a part of what is checked.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firsthand.config import child_environment
from firsthand.preflight.items import Wrong
from firsthand.values import dataclass

NUM_RUNNING, NUM_WAITING = 1, 2
START_S = 600.0
ASK_S = 120.0
POLL_S = 0.02
DRAIN_S = 60
_ADDRESS = re.compile(r"listens on http://127\.0\.0\.1:([0-9]+)")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True, eq=False)
class Server:
    """`key` opens it."""

    process: subprocess.Popen[bytes]
    log: Path
    key: str
    port: int = 0

    def ask(
        self, path: str, body: Mapping[str, Any] | None = None, *, with_key: bool = True
    ) -> Reply:
        connection = self.open(path, body, with_key=with_key)
        try:
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, headers, response.read())
        except http.client.HTTPException as error:
            raise Wrong(f"{path}: {type(error).__name__}") from None
        finally:
            connection.close()

    def open(
        self, path: str, body: Mapping[str, Any] | None = None, *, with_key: bool = True
    ) -> http.client.HTTPConnection:
        """A request that was sent; its answer is the caller's to read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ASK_S)
        headers = {"Authorization": f"Bearer {self.key}"} if with_key else {}
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            headers["Content-Type"] = "application/json"
            connection.request("POST", path, json.dumps(body), headers)
        return connection

    def status(self, path: str) -> int:
        """0: nobody answers."""
        try:
            return self.ask(path, with_key=False).status
        except OSError:
            return 0

    def wait_listening(self) -> None:
        """Until it says where. Raises Wrong when it ends before that."""
        self._until(lambda: bool(_ADDRESS.search(self.log.read_text("utf-8"))), "it never listened")
        found = _ADDRESS.search(self.log.read_text("utf-8"))
        self.port = int(found[1]) if found else 0

    def wait_status(self, path: str, wanted: int) -> None:
        self._until(lambda: self.status(path) == wanted, f"{path} was never {wanted}")

    def _until(self, holds: Any, what: str) -> None:
        until_s = time.monotonic() + START_S
        while not holds():
            if self.process.poll() is not None:
                lines = self.log.read_text("utf-8").splitlines()
                raise Wrong(f"the server ended: {lines[-1][:300] if lines else 'without a word'}")
            if time.monotonic() > until_s:
                raise Wrong(what)
            time.sleep(POLL_S)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def lines(self) -> list[dict[str, Any]]:
        """Of the log, those that are JSON."""
        text = self.log.read_text("utf-8")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@contextmanager
def started(model: str, flags: Sequence[str], folder: Path) -> Iterator[Server]:
    """Its process, which may still load."""
    key, log = secrets.token_urlsafe(32), folder / "log"
    arguments = [
        *(
            "serve",
            model,
            "--port",
            "0",
            "--log-format",
            "json",
            "--served-model-name",
            "preflight",
        ),
        *("--max-num-seqs", str(NUM_RUNNING), "--max-num-queued-reqs", str(NUM_WAITING)),
        *("--shutdown-timeout", str(DRAIN_S), "--no-shed", *flags),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "firsthand.cli.entry", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=child_environment({"FIRSTHAND_API_KEY": key}),
        )
    try:
        yield Server(process, log, key)
    finally:
        process.kill()
        process.wait()
