"""A server that is killed, at any call and at any moment: files are whole, each request once.

Owns: D-1, D-6 over `/v1/files` and `/v1/batches`. Read next: `killing_batches.py`.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.data.test_killed import preloaded, shim  # noqa: F401  # a fixture
from tests.server.processes import Server, started

pytestmark = [pytest.mark.process]
SOME = 25
NUM = 150


def explore(shim: Path, folder: Path, first: int, step: int) -> int:  # noqa: F811
    module = "tests.server.stored.killing_batches"
    found = preloaded(shim, module, folder, str(first), str(step))
    assert found["wrong"] == [] and found["calls"] > 60
    return int(found["tried"])


def test_d_1_killed_at_some_calls_of_a_batch(shim: Path, fast_folder: Path) -> None:  # noqa: F811
    first = random.randrange(SOME)
    assert explore(shim, fast_folder, first, SOME) >= 2, first


@pytest.mark.soak
@pytest.mark.slow
def test_d_1_killed_at_every_call_of_a_batch(shim: Path, fast_folder: Path) -> None:  # noqa: F811
    assert explore(shim, fast_folder, 0, 1) > 60


def request(number: int) -> bytes:
    body = {"prompt": f"text {number}", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    line = {"custom_id": f"r{number}", "url": "/v1/completions", "body": body}
    return json.dumps({"method": "POST", **line}).encode() + b"\n"


@pytest.mark.native
@pytest.mark.slow
def test_a_server_that_is_killed_goes_on_with_a_batch(tmp_path: Path, micro_folder: Path) -> None:
    """The real process with a real model, killed while it answers."""
    content = b"".join(map(request, range(NUM)))
    flags = ("--files-folder", str(tmp_path / "kept"), "--threads", "1", "--max-num-seqs", "2")
    name, kills = "", 0
    while True:
        with started(tmp_path, micro_folder, *flags) as server:
            server.wait_ready()
            name = name or begun(server, content)
            status = waited(server, name, at_least=min(NUM, 1 + 40 * (kills + 1)))
            if status["status"] == "completed":
                break
            time.sleep(random.random() * 0.1)
            server.process.kill()
            kills += 1
    assert kills >= 1 and status["request_counts"] == {"total": NUM, "completed": NUM, "failed": 0}
    path = tmp_path / "kept" / "files" / status["output_file_id"]
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [one["custom_id"] for one in found] == [f"r{number}" for number in range(NUM)]
    texts = [one["response"]["body"]["choices"][0]["text"] for one in found]
    with started(tmp_path, micro_folder, *flags) as server:
        server.wait_ready()
        for number in (0, NUM // 2, NUM - 1):
            body = json.loads(request(number))["body"]
            reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).json()
            assert reply["choices"][0]["text"] == texts[number]


def begun(server: Server, content: bytes) -> str:
    file = httpx.post(
        f"{server.url}/v1/files", files={"file": ("a", content)}, data={"purpose": "batch"}
    ).json()
    given = {"input_file_id": file["id"], "completion_window": "24h"}
    body = {**given, "endpoint": "/v1/completions"}
    return str(httpx.post(f"{server.url}/v1/batches", json=body).json()["id"])


def waited(server: Server, name: str, at_least: int) -> dict[str, Any]:
    """As it is when so many are answered, or it has ended."""
    for _ in range(3000):
        found: dict[str, Any] = httpx.get(f"{server.url}/v1/batches/{name}").json()
        done = found["request_counts"]["completed"]
        if found["status"] in ("completed", "failed") or at_least <= done < NUM:
            return found
        time.sleep(0.02)
    raise AssertionError(server.log.read_text())
