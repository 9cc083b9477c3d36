"""HTTP over a Unix socket: a server's verbs, and its public routes in a drill.

Owns: one exchange, its limits, what a refusal becomes.
May not know: which verbs there are.
Read next: `switching.py`, `drill_load.py`.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from firsthand.errors import EngineUnavailable, ReleaseRefused
from firsthand.values import dataclass

LOAD_S: Final = 900.0  # a verb may wait for a model to load, and the old one to become empty
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


@dataclass(frozen=True, slots=True)
class AdminSocket:
    """Of a running `serve --admin-socket PATH`."""

    path: Path

    def release(self, folder: Path, model: str | None) -> dict[str, Any]:
        """Raises ReleaseRefused with the server's words; EngineUnavailable where none answers."""
        query = {"path": str(folder)} | ({} if model is None else {"model": model})
        target = f"/firsthand/admin/release?{urlencode(query)}"
        try:
            answer = exchange(self.path, "POST", target, timeout_s=LOAD_S)
            found = json.loads(answer.content)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineUnavailable(f"{self.path}: no server answers there: {error}") from None
        if answer.status != 200:
            raise ReleaseRefused(f"the server goes on as it was: {_message(found)}")
        return found if isinstance(found, dict) else {}


def _message(found: Any) -> str:
    error = found.get("error") if isinstance(found, dict) else None
    return str(error.get("message") if isinstance(error, dict) else found)[:500]
