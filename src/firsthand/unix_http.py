"""HTTP over a Unix socket, as a client.

Owns: one exchange and its limits. May not know: what is asked, what a refusal becomes.
Read next: `release/sockets.py`, `cli/admin.py`.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from firsthand.values import dataclass

MAX_BYTES: Final = 16 << 20


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # in small letters
    content: bytes


def exchange(
    path: Path,
    method: str,
    target: str,
    body: Mapping[str, Any] | None = None,
    key: str | None = None,
    timeout_s: float = 60.0,
) -> Answer:
    """Raises OSError, http.client.HTTPException."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    content = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        content = json.dumps(body).encode()
    with closing(Connection(path, timeout_s)) as connection:
        connection.request(method, target, content, headers)
        response = connection.getresponse()
        got = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, got, response.read(MAX_BYTES))
