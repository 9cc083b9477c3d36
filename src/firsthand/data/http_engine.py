"""An engine behind an address: as many connections as keep its batch full.

Owns: connections, one per thread, and what a lost one is called.
May not know: what is asked, or what a reply means.
Read next: `engines.py`.
"""

from __future__ import annotations

import http.client
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from firsthand.addresses import Address, fault_of
from firsthand.data.engines import LOST, Reply
from firsthand.data.identity import trace_parent

MAX_REPLY_BYTES = 64 << 20


class HttpEngine:
    """Paths begin with `/v1`, which the address has already."""

    def __init__(self, address: Address, width: int) -> None:
        self.width = width
        self._address = address
        self._threads = ThreadPoolExecutor(width, "ask")
        self._own = threading.local()
        self._open: list[http.client.HTTPConnection] = []
        self._closing = False

    def ask(self, method: str, path: str, content: bytes | None, request_id: str) -> Future[Reply]:
        return self._threads.submit(self._ask, method, path, content, request_id)

    def close(self) -> None:
        """Whoever waits for a reply gets none."""
        self._closing = True
        for connection in list(self._open):
            with suppress(OSError):
                if connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)
        self._threads.shutdown(cancel_futures=True)
        for connection in self._open:
            connection.close()

    def _ask(self, method: str, path: str, content: bytes | None, request_id: str) -> Reply:
        """A connection that the other side has closed between two requests is opened again."""
        status = 0
        for _ in range(2):
            connection = self._connection()
            try:
                if connection.sock is None:
                    self._address.open(connection)
            except (OSError, http.client.HTTPException) as error:
                fault, status = error, 0
                break
            try:
                return self._reply(connection, method, path, content, request_id)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                fault, status = error, LOST
                if self._closing or isinstance(error, TimeoutError):
                    break
        status = 0 if self._closing else status
        return Reply(status, f"{self._address}: {fault_of(fault)}".encode())

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if found is None:
            found = self._own.connection = self._address.connect()
            self._open.append(found)
        return found

    def _reply(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        content: bytes | None,
        request_id: str,
    ) -> Reply:
        headers = {"X-Request-Id": request_id, **self._address.headers}
        if (parent := trace_parent(request_id)) is not None:
            headers["traceparent"] = parent
        if content is not None:
            headers["Content-Type"] = "application/json"
        base = self._address.path.removesuffix("/v1")
        connection.request(method, base + path, content, headers)
        response = connection.getresponse()
        found = response.read(MAX_REPLY_BYTES + 1)
        if len(found) > MAX_REPLY_BYTES:
            connection.close()
            return Reply(502, b"the reply is over 64 MiB")
        later = response.headers.get("Retry-After", "")
        after_s = float(later) if later.isascii() and later.isdigit() else None
        return Reply(response.status, found, after_s)
