"""Behind a proxy that buffers, as most do: nginx, from Debian's package.

Owns: proof that streams pass through it piece by piece, that a lost client is noticed, and what of
its headers counts. Read next: `test_guard_http.py`.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.fakes import Script
from tests.server.guarded import CHAT, KEY, STREAM, Guarded, guarded

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
pytestmark = [pytest.mark.process, pytest.mark.skipif(NGINX is None, reason="needs nginx")]

HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
CONFIG = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid;
error_log {folder}/errors warn;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{
    listen 127.0.0.1:{port};
    location /llm/ {{
      proxy_pass http://127.0.0.1:{upstream}/;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Request-Id $request_id;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }}
  }}
}}
"""


@contextmanager
def proxied(folder: Path, server: Guarded) -> Iterator[httpx.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "nginx.conf").write_text(
        CONFIG.format(folder=folder, port=port, upstream=server.port), encoding="ascii"
    )
    process = subprocess.Popen(
        [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")],
        stderr=subprocess.DEVNULL,
    )
    base = f"http://127.0.0.1:{port}/llm"
    try:
        with httpx.Client(base_url=base, headers=HEADERS, timeout=30) as client:
            until = time.perf_counter() + 20
            while not _answers(client):
                assert process.poll() is None and time.perf_counter() < until
                time.sleep(0.01)
            yield client
    finally:
        process.kill()
        process.wait()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


def test_a_stream_passes_piece_by_piece_and_a_lost_client_is_noticed(tmp_path: Path) -> None:
    script = Script(pieces=("a",), pause_s=0.01, endless=True)
    with guarded(script) as server, proxied(tmp_path, server) as client:
        with client.stream("POST", "/v1/chat/completions", content=STREAM) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["cache-control"] == "no-cache"
            for line in answer.iter_lines():  # it never ends: what comes was not held back
                if '"content":"a"' in line:
                    break
        until = time.perf_counter() + 20
        while not server.service.streams[0].is_closed:
            assert time.perf_counter() < until
            time.sleep(0.01)


def test_the_requests_id_is_the_proxys_and_an_address_in_a_header_is_nobodys(
    tmp_path: Path,
) -> None:
    with guarded(root_path="/llm") as server, proxied(tmp_path, server) as client:
        answer = client.post("/v1/chat/completions", content=CHAT)
        assert answer.status_code == 200
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
        local = {"authorization": "", "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"}
        assert client.get("/v1/models", headers=local).status_code == 401
        assert client.get("/v1/models").json()["data"][0]["id"] == "micro"
        assert client.get("/docs").status_code == 200
        # A proxy that keeps the prefix: one is taken away.
        assert client.get("/llm/v1/models").status_code == 200


def test_refusals_come_through_as_they_are(tmp_path: Path) -> None:
    with guarded(max_body_size=4096) as server, proxied(tmp_path, server) as client:
        large = client.post("/v1/chat/completions", content=b"x" * 5000)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
        server.loop.call_soon_threadsafe(server.running.lifecycle.begin_drain, "test")
        until = time.perf_counter() + 20
        while (late := client.post("/v1/chat/completions", content=CHAT)).status_code != 503:
            assert time.perf_counter() < until
        assert late.json()["error"]["code"] == "draining"
        assert int(late.headers["retry-after"]) >= 1
