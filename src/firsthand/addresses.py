"""The address of a server in the form of OpenAI's API, as those who ask it need it.

Owns: what is a usable address, which are this machine's own, and the way to a connection.
May not know: what is asked.
Read next: `cli/client.py`, `data/http_engine.py`.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import ssl
from dataclasses import field
from urllib.parse import urlsplit

from firsthand.checks import shown
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

CONNECT_S = 10.0
_PLAIN = re.compile("[!-~]+")  # what a request line and a Host header may hold
SILENCE_S = 600.0  # a long prompt is silent too, with servers that send no ping


@dataclass(frozen=True, slots=True)
class Address:
    """`path` is that to which `/models` and the like are added."""

    scheme: str
    host: str
    port: int
    path: str
    api_key: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def connect(self) -> http.client.HTTPConnection:
        """A connection, not open yet."""
        if self.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=CONNECT_S, context=context
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_S)

    def open(self, connection: http.client.HTTPConnection) -> None:
        """Connect; from then on a silence may last."""
        connection.connect()
        connection.sock.settimeout(SILENCE_S)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def address_of(url: str, api_key: str | None = None) -> Address:
    """`url` with or without `/v1`. Raises InvalidRequest."""
    try:
        parts = urlsplit(url.strip().rstrip("/"))
        port = (443 if parts.scheme == "https" else 80) if parts.port is None else parts.port
        is_bare = not (parts.query or parts.fragment or parts.username)
        asked = str(parts.hostname or "").encode("idna").decode("ascii")  # as a resolver is asked
        sent = _PLAIN.fullmatch(asked) and _PLAIN.fullmatch(parts.path or "/")
        usable = parts.scheme in ("http", "https") and is_bare and sent and port
    except ValueError:
        usable = None
    if not usable:
        message = f"must be an address such as http://127.0.0.1:8000, not {shown(url)}"
        raise InvalidRequest("url", message)
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise InvalidRequest("api_key", "holds a character that no key has")
    path = parts.path if parts.path.endswith("/v1") else parts.path + "/v1"
    return Address(parts.scheme, str(parts.hostname), port, path, api_key)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to what is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fault_of(error: Exception) -> str:
    """What to say of a connection that failed."""
    if isinstance(error, TimeoutError):
        return "does not answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be reached: {error.strerror}"
    return f"does not speak HTTP as it should ({type(error).__name__}); is it https?"
