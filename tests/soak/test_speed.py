"""What HTTP costs: throughput beside the same engine in process, and time to the first token.

Owns: both figures on the real model, from the first request on. Only `make soak` runs these; a
machine that does something else meanwhile shows it here.
May not know: how fast a machine is: each round is measured beside the other.
Read next: `in_process.py`, `clients.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from tests.soak.conftest import Figure
from tests.soak.in_process import prompt
from tests.soak.serving import ROOT, Server, quantile, served

pytestmark = [
    pytest.mark.native,
    pytest.mark.process,
    pytest.mark.model,
    pytest.mark.soak,
    pytest.mark.slow,
]
NUM, TOKENS, ROUNDS = 16, 96, 5
FIRST_TOKENS = 200


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    flags = ("--max-model-len", "2048", "--no-shed", "--threads", str(os.cpu_count()))
    with served(smollm2_path, folder, *flags) as found:
        yield found


@contextmanager
def in_process(
    model: Path, num: int = NUM, tokens: int = TOKENS
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.soak.in_process", str(model), str(num), str(tokens)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def alone_s(process: subprocess.Popen[str], number: int) -> float:
    assert process.stdin is not None and process.stdout is not None
    print(number, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def http_s(server: Server, number: int, *, stream: bool) -> float:
    """Without the processor time of the clients themselves, which on a machine of few cores is
    taken from the engine: half of it on two."""

    async def ask(index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps(
            {
                "prompt": prompt(number, index),
                "max_tokens": TOKENS,
                "ignore_eos": True,
                "stream": stream,
                "seed": index,
            }
        )
        writer.write(request(body))
        text = await reader.read(-1)
        assert text.startswith(b"HTTP/1.1 200") and b'"error"' not in text
        writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(ask(index) for index in range(NUM)))

    began_s, used_s = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(1) as pool:  # this thread may have a loop, as a browser's driver does
        pool.submit(asyncio.run, all_of_them()).result()
    own_s = (time.process_time() - used_s) / (os.cpu_count() or 1)
    return time.perf_counter() - began_s - own_s


def request(body: str, connection: str = "close") -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_reach_http_is_as_fast_as_the_engine_from_the_first_request_on(
    server: Server, smollm2_path: Path, figure: Figure, stream: bool
) -> None:
    """In turns, so that both meet the same machine; nothing is warmed up by hand."""
    shares = []
    with in_process(smollm2_path) as process:
        for round_ in range(ROUNDS):
            number = round_ + 1000 * stream
            alone, http = alone_s(process, number), http_s(server, number, stream=stream)
            shares.append(alone / http)
            figure(
                f"{NUM} x {TOKENS} {'streamed' if stream else 'whole'}, round {round_ + 1}",
                NUM * TOKENS / http,
                f"tokens/s over HTTP, {NUM * TOKENS / alone:.0f} in process",
            )
    kind = "streamed" if stream else "whole"
    figure(f"throughput over HTTP, {kind}, first round", shares[0], "of in process")
    share = median(shares)
    figure(f"throughput over HTTP, {kind}, median", share, "of in process", "at least 0.95")
    assert share >= 0.95
    assert shares[0] >= 0.90, "the first requests are slow"


def test_reach_a_first_token_comes_as_soon(server: Server, figure: Figure) -> None:
    """What the client waited for it, less what the engine says it took."""
    added_ms = []
    with socket.create_connection(("127.0.0.1", server.port)) as opened:
        for number in range(FIRST_TOKENS):
            body = {"prompt": prompt(number, 99), "max_tokens": 2, "ignore_eos": True}
            body |= {"stream": True, "firsthand_timings": True}
            began_s, first_s, text = time.perf_counter(), 0.0, b""
            opened.sendall(request(json.dumps(body), "keep-alive"))
            while not text.endswith(b"0\r\n\r\n"):
                text += opened.recv(65536)
                if not first_s and b'"text":' in text:
                    first_s = time.perf_counter() - began_s
            found = re.search(rb'"timings":(\{.*?\})', text)
            assert found is not None
            added_ms.append(first_s * 1e3 - json.loads(found[1])["ttft_ms"])
    figure("time to first token added by HTTP, median", median(added_ms), "ms", "at most 5")
    figure("time to first token added by HTTP, p95", quantile(added_ms, 0.95), "ms")
    assert median(added_ms) <= 5.0
