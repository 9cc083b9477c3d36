"""A small hub on the loopback interface, with the faults of a real network on order.

Owns: the protocol as the hub speaks it: the list of files, HEAD, redirect to storage, ranges.
May not know: the code under test.
Read next: `test_hub.py`.

The hub is `http://127.0.0.1:PORT`; its storage is the same server by its other name, `localhost`:
for a client that is another host.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass(frozen=True)
class Fault:
    """What one request meets instead of, or in the middle of, its answer."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # close the connection after so many bytes of the body
    hang: bool = False  # say nothing until the server ends; with `cut_after`, from there on
    body: bytes | None = None  # another body than the right one
    endless: bool = False  # no length, and a byte more than was announced


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    host: str
    headers: dict[str, str]


@dataclass
class HubServer:
    """`files` of the one repository `org/tiny`; names in `large` lie in the storage."""

    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)
    commit: str = COMMIT
    needs_token: str | None = None
    listed: list[Any] | None = None  # names in the list of files, if not those of `files`
    etags: dict[str, str] = field(default_factory=dict)  # hashes to claim, if not the right ones
    faults: dict[str, list[Fault]] = field(default_factory=dict)  # by `METHOD part-of-path`
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def etag(self, name: str) -> str:
        data = self.files[name]
        if name in self.large:
            right = hashlib.sha256(data).hexdigest()
        else:
            right = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return self.etags.get(name, right)

    def seen(self, method: str, part: str) -> list[Request]:
        return [each for each in self.requests if each.method == method and part in each.path]

    def next_fault(self, method: str, path: str) -> Fault | None:
        for key, queue in self.faults.items():
            wanted, _, part = key.partition(" ")
            if wanted == method and part in path and queue:
                return queue.pop(0)
        return None


@contextmanager
def running(hub: HubServer) -> Iterator[HubServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(hub, self)

        def do_HEAD(self) -> None:
            _answer(hub, self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def _answer(hub: HubServer, handler: BaseHTTPRequestHandler) -> None:
    parts = urlsplit(handler.path)
    path = unquote(parts.path)
    headers = dict(handler.headers.items())
    hub.requests.append(Request(handler.command, path, handler.headers.get("Host", ""), headers))
    fault = hub.next_fault(handler.command, path)
    if fault is not None and fault.hang and fault.cut_after is None:
        hub.ended.wait(10)
        handler.close_connection = True
        return
    if fault is not None and fault.status is not None:
        _send(handler, fault.status, fault.headers, fault.body or b"")
        return
    if path.startswith("/storage/"):
        _send_file(hub, handler, path.removeprefix("/storage/"), fault)
    elif hub.needs_token and headers.get("Authorization") != f"Bearer {hub.needs_token}":
        _send(handler, 401, {}, b"")
    elif path.startswith("/api/models/org/tiny/revision/"):
        names = list(hub.files) if hub.listed is None else hub.listed
        siblings = [{"rfilename": name} for name in names]
        body = json.dumps({"sha": hub.commit, "siblings": siblings}).encode()
        _send(handler, 200, {"Content-Type": "application/json"}, body)
    else:
        _answer_file(hub, handler, path.removeprefix(f"/org/tiny/resolve/{hub.commit}/"), fault)


def _answer_file(
    hub: HubServer, handler: BaseHTTPRequestHandler, name: str, fault: Fault | None
) -> None:
    if name not in hub.files:
        _send(handler, 404, {}, b"")
    elif name not in hub.large:
        _send_file(hub, handler, name, fault)
    else:
        headers = {
            "Location": f"http://localhost:{hub.port}/storage/{name}?signature=confidential",
            "X-Linked-Etag": f'"{hub.etag(name)}"',
            "X-Linked-Size": str(len(hub.files[name])),
            "X-Repo-Commit": hub.commit,
        }
        _send(handler, 302, headers, b"")


def _send_file(
    hub: HubServer, handler: BaseHTTPRequestHandler, name: str, fault: Fault | None
) -> None:
    data = hub.files[name]
    if fault is not None and fault.body is not None:
        data = fault.body
    status, headers = 200, {"X-Repo-Commit": hub.commit}
    if name in hub.large:
        headers["ETag"] = '"not-the-hash-of-anything"'
    else:
        headers["ETag"] = f'W/"{hub.etag(name)}"'
    wanted = handler.headers.get("Range")
    if wanted is not None:
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        status, data = 206, data[start:]
    _send(handler, status, headers, data, fault)
    if fault is not None and fault.hang:
        hub.ended.wait(10)


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str],
    body: bytes,
    fault: Fault | None = None,
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if fault is not None and fault.endless:
        body += b"!"
    else:
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command == "HEAD":
        return
    if fault is not None and fault.cut_after is not None:
        body = body[: fault.cut_after]
    if fault is not None:
        handler.close_connection = True
    handler.wfile.write(body)
