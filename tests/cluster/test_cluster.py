"""Replicas on a real Ray, behind the real door: the surface of the single server, and its bits.

Owns: one Ray for all tests here, with two replicas of a micro model. May not know: how a request
finds its replica. Read next: `test_fleet.py`, the same without Ray, in more ways.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from firsthand.cluster.closed import GCS_CALL, REPLICA_CALL, check_closed, refuses
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.entry import When
from tests.server.processes import PROGRAM, Server, launched, started

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow]

READY_S = 240.0
FLAGS = ("--max-model-len", "256", "--served-model-name", "micro", "--max-num-seqs", "8")
BODY = {"prompt": "hello", "max_tokens": 60, "ignore_eos": True, "seed": 3, "temperature": 0.9}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def cluster(
    micro_folder: Path, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("cluster")
    verb = ("cluster", "serve", "--local", "--replicas", "2", "--replica-cpus", "1")
    variables = {"FIRSTHAND_HOME": str(home)}
    with launched(folder, str(micro_folder), *FLAGS, verb=verb, **variables) as server:
        server.wait_ready(READY_S)
        yield server
        code, _ = server.end(signal.SIGTERM, 60.0)
        assert code == 0, server.log.read_text()


@pytest.fixture(scope="module")
def single(micro_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("single")
    with started(folder, micro_folder, "--max-model-len", "256", "--max-num-seqs", "8") as server:
        server.wait_ready()
        yield server


def post(server: Server, path: str, body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def steady(value: Any) -> Any:
    """Without what is new in each answer: ids and times."""
    if isinstance(value, dict):
        return {name: steady(one) for name, one in value.items() if name not in ("id", "created")}
    return [steady(one) for one in value] if isinstance(value, list) else value


ASKED: list[tuple[str, Any]] = [
    ("/v1/completions", BODY),
    ("/v1/completions", {**BODY, "n": 2, "logprobs": 2, "stop": ["q"]}),
    ("/v1/completions", {**BODY, "max_tokens": 100000}),
    ("/v1/completions", {**BODY, "temperature": -1}),
    ("/v1/completions", {"prompt": ["a", "bc"], "max_tokens": 4, "temperature": 0}),
    ("/v1/chat/completions", {"model": "nobody", "messages": []}),
    ("/v1/completions", {**BODY, "guided_regex": "[a-z]{3} [0-9]{4}"}),
    ("/v1/embeddings", {"input": "hello"}),
    ("/tokenize", {"prompt": "hello"}),
]


@pytest.mark.parametrize("at", range(len(ASKED)))
def test_the_surface_is_the_single_servers(cluster: Server, single: Server, at: int) -> None:
    path, body = ASKED[at]
    wanted = post(single, path, body)
    for _ in range(2):
        found = post(cluster, path, body)
        assert found.status_code == wanted.status_code, found.text
        assert steady(found.json()) == steady(wanted.json())


def test_g_38_a_replica_is_killed_in_mid_stream_and_nobody_can_tell(cluster: Server) -> None:
    """Two streams, one at each; one loses its replica, both get the bits that they had before."""
    body = {**BODY, "max_tokens": 200, "stream": True}
    wanted = text_of(cluster, body)
    victims = replica_pids()  # looked for before, since these answers are short
    assert len(victims) == 2
    with ExitStack() as held:
        lines = [held.enter_context(streamed(cluster, body)) for _ in range(2)]
        begun = [[next(one)] for one in lines]
        os.kill(victims[0], signal.SIGKILL)
        texts = ["".join(first + list(one)) for first, one in zip(begun, lines, strict=True)]
    assert texts == [wanted, wanted]
    assert text_of(cluster, body) == wanted
    until = time.monotonic() + READY_S
    while len(replica_pids()) < 2:
        assert time.monotonic() < until, "Ray Serve starts another one"
        time.sleep(0.2)


def test_which_replica_answered_is_told_in_log_record_and_metrics(cluster: Server) -> None:
    for _ in range(4):
        answer = post(cluster, "/v1/completions", BODY)
    request_id = answer.headers["x-request-id"]
    record = httpx.get(f"{cluster.url}/firsthand/requests/{request_id}", timeout=10).json()
    lines = [one for one in cluster.told("request") if one["request_id"] == request_id]
    assert record["replicas"] == lines[0]["replicas"] != []
    page = httpx.get(cluster.url + "/metrics", timeout=10).text
    names = [entry.name for entry in CATALOGUE.values() if entry.when is When.CLUSTER]
    assert names and all(f"\n{name}" in page for name in names)
    in_rotation = r'\nfirsthand_replica_in_rotation\{model="micro",replica="\d+"\} 1\.0'
    assert re.search(in_rotation, page), "one of them was killed by the test before"
    assert metric(cluster, "firsthand_replica_moves_total") >= 1.0, "of the test before"
    assert metric(cluster, "firsthand_replica_cpu_seconds_total") > 0.0


def test_s_81_nothing_of_ray_answers_without_a_token_and_what_it_can_listens_on_loopback(
    cluster: Server, home: Path
) -> None:
    address = json.loads((home / "cluster.json").read_text())["address"]
    assert address.startswith("127.0.0.1:")
    assert (home / "ray_token").stat().st_mode & 0o777 == 0o600
    check_closed(address, "127.0.0.1:8265")
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        call = channel.unary_unary(GCS_CALL, bytes, bytes)
        call(b"", timeout=10, metadata=[("authorization", "Bearer " + "00" * 32)])
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    replicas = replica_pids()
    for pid in ray_pids():
        assert "ProxyActor" not in Path(f"/proc/{pid}/cmdline").read_text(), "a door of Ray's own"
        for host, port in listens_at(pid):
            if host not in ("127.0.0.1", "::1"):
                assert pid in replicas, Path(f"/proc/{pid}/cmdline").read_text()
                assert refuses(f"127.0.0.1:{port}", REPLICA_CALL)


def test_s_105_a_cluster_is_shown_scaled_and_loses_nothing_by_it(
    cluster: Server, home: Path
) -> None:
    body = {**BODY, "max_tokens": 200}
    wanted = post(cluster, "/v1/completions", body).json()["choices"]
    with ThreadPoolExecutor(4) as pool:
        scaled = pool.submit(told, home, "scale", "1")
        answers: list[httpx.Response] = []
        until = time.monotonic() + READY_S
        while len(replica_pids()) > 1 or not answers:
            assert time.monotonic() < until
            asked = [pool.submit(post, cluster, "/v1/completions", body) for _ in range(3)]
            answers += [one.result() for one in asked]
    assert scaled.result()["replicas"] == 1
    assert [one.json()["choices"] for one in answers] == [wanted] * len(answers)
    (row,) = told(home, "status")["models"]
    assert (row["wanted"], row["running"]) == (1, 1)


def text_of(server: Server, body: dict[str, Any]) -> str:
    with streamed(server, body) as pieces:
        return "".join(pieces)


@contextmanager
def streamed(server: Server, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        yield pieces_of(answer)


def pieces_of(answer: httpx.Response) -> Iterator[str]:
    for line in answer.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            yield from (choice["text"] for choice in event["choices"])


def told(home: Path, *words: str) -> dict[str, Any]:
    environment = os.environ | {"FIRSTHAND_HOME": str(home)}
    command = [sys.executable, "-c", PROGRAM, "cluster", *words, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def metric(server: Server, name: str) -> float:
    text = httpx.get(server.url + "/metrics", timeout=10).text
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def ray_pids(word: str = "ray") -> list[int]:
    """Processes below this one whose command has that word in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_text(errors="replace")
            if word in command and is_below(int(process.name)):
                found.append(int(process.name))
    return found


def replica_pids() -> list[int]:
    return ray_pids("ray::ServeReplica")


def is_below(pid: int) -> bool:
    while pid > 1:
        status = Path(f"/proc/{pid}/stat").read_text()
        pid = int(status.rpartition(")")[2].split()[1])
        if pid == os.getpid():
            return True
    return False


def listens_at(pid: int) -> set[tuple[str, int]]:
    """Hosts and ports of TCP on which that process listens."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(os.readlink(file))
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                host, _, port = words[1].partition(":")
                found.add((address_of(host), int(port, 16)))
    return found


def address_of(text: str) -> str:
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    return str(getattr(found, "ipv4_mapped", None) or found)
