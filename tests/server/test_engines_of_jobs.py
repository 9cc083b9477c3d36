"""The same job with a model in this process and behind an address: equal bytes.

Owns: proof of `data/http_engine.py` and `inside.py`. Read next: `tests/data/test_runs.py`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from firsthand.addresses import address_of
from firsthand.data.engines import Engine
from firsthand.data.http_engine import HttpEngine
from firsthand.data.running import How, run_job
from firsthand.errors import EngineUnavailable
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import ServiceOptions
from firsthand.server.inside import InsideEngine
from firsthand.version import VERSION
from tests.data.jobs import ask, job_in, lines
from tests.server.conftest import live_server

pytestmark = [pytest.mark.native, pytest.mark.process]
ENGINE: dict[str, Any] = {
    "url": "http://x",
    "options": {"max_tokens": 6, "temperature": 0.9},
    "patience_s": 0.5,
}


def test_in_process_and_over_http(micro_folder: Path, tmp_path: Path) -> None:
    """Also with answers that are drawn: each has its record's seed."""
    records = lines(*map(ask, range(30)))
    options = ServiceOptions(micro_folder, LoadOptions(threads=1), name="micro")
    found = {}
    with live_server(options, version=VERSION) as live:
        engines: dict[str, Callable[[], Engine]] = {
            "inside": lambda: InsideEngine(options),
            "http": lambda: HttpEngine(address_of(live.running.url), 8),
        }
        for name, engine in engines.items():
            (tmp_path / name).mkdir()
            outcome = run_job(job_in(tmp_path / name, records, engine=ENGINE), engine, How())
            assert outcome.books.accepted == 30
            found[name] = (tmp_path / name / "out.jsonl").read_bytes()
    assert found["inside"] == found["http"]


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    job = job_in(tmp_path, lines(ask(1)), engine=ENGINE)
    with pytest.raises(EngineUnavailable, match="refused"):
        run_job(job, lambda: HttpEngine(address_of("http://127.0.0.1:1"), 2), How())


def test_a_connection_that_was_closed_between_two_requests_is_opened_again() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_once_each() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        thread = threading.Thread(target=answer_once_each)
        thread.start()
        engine = HttpEngine(address_of(f"http://127.0.0.1:{server.getsockname()[1]}"), 1)
        replies = [engine.ask("GET", "/v1/models", None, "x").result(30) for _ in range(2)]
        engine.close()
        thread.join(30)
    assert [one.status for one in replies] == [200, 200]


def test_d_5_a_record_at_which_the_server_drops_the_connection_is_poison(tmp_path: Path) -> None:
    """And holds up nobody: the others are answered all the while."""
    models = b'{"data": [{"id": "m"}]}'
    choice = b'{"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}'
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        asked = connection.recv(65536)
                        while asked.startswith(b"POST") and not asked.endswith(b"}"):
                            asked += connection.recv(65536)
                        if b"vanish" in asked:
                            continue
                        body = choice if asked.startswith(b"POST") else models
                        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
                        size = b"Content-Length: %d\r\n\r\n" % len(body)
                        connection.sendall(head + size + body)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        records = lines(ask(0), ask(1, "vanish"), *map(ask, range(2, 6)))
        job = job_in(tmp_path, records, engine=ENGINE)
        outcome = run_job(job, lambda: HttpEngine(address_of(url), 2), How())
    assert (outcome.books.accepted, dict(outcome.books.reasons)) == (5, {"poison": 1})


def test_closing_ends_who_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        engine = HttpEngine(address_of(f"http://127.0.0.1:{server.getsockname()[1]}"), 1)
        waiting = engine.ask("GET", "/v1/models", None, "x")
        connection, _ = server.accept()
        connection.recv(65536)
        engine.close()
        assert waiting.result(30).status == 0
        connection.close()
