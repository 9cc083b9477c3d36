"""A real S3 server on the loopback interface (moto's), with the faults of a network on order.

Owns: the server, what is in its bucket, the faults.
May not know: the code under test.
Read next: `test_objects.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

BUCKET = "models"


@dataclass
class ObjectServer:
    """`on_get` sees the key and the count of each read, and says what goes wrong, or nothing: a
    number is a status, "short" ends the body early, "long" sends another length, a callable is
    called before the answer."""

    port: int = 0
    on_get: Callable[[str, int], int | str | Callable[[], None] | None] = lambda key, count: None
    ranges: list[tuple[str, str]] = field(default_factory=list)
    matches: list[str | None] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def store(self) -> Any:
        from obstore.store import S3Store

        options: dict[str, Any] = {"access_key_id": "key", "secret_access_key": "secret"}
        options |= {"region": "us-east-1", "endpoint": self.url}
        return S3Store(BUCKET, client_options={"allow_http": True}, **options)

    def put(self, key: str, content: bytes) -> None:
        import obstore

        obstore.put(self.store(), key, content, use_multipart=False)

    def delete(self, key: str) -> None:
        import obstore

        obstore.delete(self.store(), key)

    def wrap(self, app: Any) -> Any:
        def answer(environ: dict[str, Any], start: Any) -> Any:
            key = environ["PATH_INFO"].removeprefix(f"/{BUCKET}/")
            if environ["REQUEST_METHOD"] != "GET" or "HTTP_RANGE" not in environ:
                return app(environ, start)
            with self.lock:
                self.ranges.append((key, environ["HTTP_RANGE"]))
                self.matches.append(environ.get("HTTP_IF_MATCH"))
                count = len(self.ranges)
            fault = self.on_get(key, count)
            if isinstance(fault, int):
                start(f"{fault} Fault", [("Content-Length", "0")])
                return [b""]
            if callable(fault):
                fault()
            if not isinstance(fault, str):
                return app(environ, start)
            headers: list[Any] = []
            body = b"".join(app(environ, lambda *given: headers.extend(given[:2])))
            cut = body[: len(body) // 2]
            kept = [(n, v) for n, v in headers[1] if n.lower() != "content-length"]
            size = len(body) if fault == "short" else len(cut)
            start(headers[0], [*kept, ("Content-Length", str(size))])
            return [cut]

        return answer


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    import logging

    from moto.server import create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    here = ObjectServer()
    app = here.wrap(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    here.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        import urllib.request

        request = urllib.request.Request(f"{here.url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
        yield here
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
