"""A running server's admin socket, as a command asks it.

Owns: the request over a Unix socket, and what a refusal becomes.
May not know: verbs.
Read next: `chaos.py`, its user; `../server/admin.py`, the other end.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from firsthand.errors import EngineUnavailable, InvalidRequest

TIMEOUT_S = 30.0
MAX_BYTES = 1 << 20


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask_admin(path: Path, verb: str, query: Mapping[str, object]) -> dict[str, Any]:
    """The answer to a verb. Raises InvalidRequest with the server's words, EngineUnavailable."""
    given = {key: value for key, value in query.items() if value is not None}
    connection = _UnixConnection(path)
    try:
        connection.request("POST", f"/firsthand/admin/{verb}?{urlencode(given)}")
        response = connection.getresponse()
        found = json.loads(response.read(MAX_BYTES))
        if response.status == 200:
            return dict(found)
        message = str(found["error"]["message"])
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise EngineUnavailable(f"{path}: cannot be reached: {why}") from None
    except (ValueError, KeyError, TypeError):
        raise EngineUnavailable(f"{path}: is no server of ours") from None
    finally:
        connection.close()
    name, colon, text = message.partition(": ")
    raise InvalidRequest(name, text) if colon else InvalidRequest(verb, message)
