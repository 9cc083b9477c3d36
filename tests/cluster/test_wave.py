"""A wave of requests: one replica, three, one again, and every answer is right. S111, VERS-6, G23.

Owns: the wave. May not know: when a replica is added (`autoscaling/`). Read next:
`test_cluster.py`, whose Ray is like this one; docs/autoscaling.md.
"""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.cli.micro_model import write_micro_model
from tests.cluster.conftest import Figure
from tests.cluster.test_cluster import replica_pids, told
from tests.server.processes import Server, launched

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow, pytest.mark.soak]

SCALING = """
max-replicas = 3
ongoing-out = 2
queue-out = 2
confirm-s = 2
out-cooldown-s = 2
start-s = 30
in-cooldown-s = 10
empty-s = 8
look-back-s = 15
"""
BODY = {"prompt": "hello", "max_tokens": 2500, "ignore_eos": True, "seed": 3, "temperature": 0.9}
FLAGS = ("--max-model-len", "4096", "--served-model-name", "micro", "--max-num-seqs", "8")
WAVE, EBB = 10, 1  # callers, each of whom asks again when it has its answer
FLOOD = 20  # of them: more than run at once
PATIENCE_S = 400.0


class Callers:
    """Some who ask without a pause, until they are told to stop; what they got."""

    def __init__(self, server: Server, many: int) -> None:
        self._server, self._over = server, threading.Event()
        self._pool = ThreadPoolExecutor(many)
        self._work = [self._pool.submit(self._ask) for _ in range(many)]

    def _ask(self) -> list[Any]:
        found = []
        while not self._over.is_set():
            answer = asked(self._server)
            found.append(answer.json().get("choices") if answer.status_code == 200 else answer.text)
            if len(self._work) == EBB:
                time.sleep(0.5)
        return found

    def end(self) -> list[Any]:
        self._over.set()
        found = [answer for one in self._work for answer in one.result()]
        self._pool.shutdown()
        return found


def test_a_wave_comes_and_goes_without_a_failed_request(tmp_path: Path) -> None:
    """Answers are long: what is under way is at the replicas, and not on its way to them."""
    model = micro(tmp_path)
    home, scaling = tmp_path / "home", tmp_path / "scaling.toml"
    scaling.write_text(SCALING)
    verb = ("cluster", "serve", "--local", "--scaling", str(scaling), "--replica-cpus", "0.5")
    with launched(tmp_path, str(model), *FLAGS, verb=verb, FIRSTHAND_HOME=str(home)) as server:
        server.wait_ready(PATIENCE_S)
        wanted = asked(server).json()["choices"]
        took_s: dict[str, float] = {}
        answers = []
        for name, many, replicas in (("rise", WAVE, 3), ("fall", EBB, 1)):
            callers, begun_s = Callers(server, many), time.monotonic()
            waited({1, 2, 3} - {4 - replicas})
            took_s[f"{name}_begins"] = time.monotonic() - begun_s
            waited({replicas})
            took_s[name] = time.monotonic() - begun_s
            if replicas == 3:
                waited_ready(home, 3)
            answers += callers.end()
        waited_ready(home, 1)
        print({"answers": len(answers), **took_s})
        assert answers == [wanted] * len(answers)
        code, _ = server.end(signal.SIGTERM, 60.0)
        assert code == 0, server.log.read_text()


def test_another_replica_is_decided_on_within_15_s_of_the_load_that_needs_it(
    tmp_path: Path, figure: Figure
) -> None:
    """With the limits as they are. What comes then, Ray's start of a process and a model that is
    loaded, is told only."""
    model = micro(tmp_path)
    verb = ("cluster", "serve", "--local", "--min-replicas", "1", "--max-replicas", "3")
    flags = (*FLAGS, "--max-queue-wait", "0")  # nobody is refused, however slow the machine is
    with tempfile.TemporaryDirectory(prefix="fh") as short:
        variables = {"FIRSTHAND_HOME": str(tmp_path / "home"), "TMPDIR": short}
        with launched(tmp_path, str(model), *flags, verb=verb, **variables) as server:
            server.wait_ready(PATIENCE_S)
            wanted = asked(server).json()["choices"]
            callers, begun_s = Callers(server, FLOOD), time.monotonic()
            while not has_decided(Path(short)):
                assert time.monotonic() - begun_s < PATIENCE_S
                time.sleep(0.1)
            decided_s = time.monotonic() - begun_s
            waited({2, 3})
            figure("autoscaling: decided after", decided_s, "s", "at most 15")
            figure("autoscaling: its process begins after", time.monotonic() - begun_s, "s")
            answers = callers.end()
            figure("autoscaling: answers meanwhile", len(answers), "answers")
            assert answers == [wanted] * len(answers)
            assert decided_s <= 15.0
            server.end(signal.SIGTERM, 60.0)


def has_decided(folder: Path) -> bool:
    """By the log of Ray's controller."""
    logs = folder.glob("fh-ray-*/r/session_latest/logs/serve/controller_*.log")
    return any("engine: 1 to 2 replicas" in log.read_text() for log in logs)


def micro(folder: Path) -> Path:
    """With room for long answers."""
    (folder / "micro").mkdir()
    return write_micro_model(folder / "micro", context_length=4096)


def asked(server: Server) -> httpx.Response:
    return httpx.post(server.url + "/v1/completions", json=BODY, timeout=PATIENCE_S)


def waited(counts: set[int]) -> None:
    """Until there are so many processes of replicas."""
    until = time.monotonic() + PATIENCE_S
    while len(replica_pids()) not in counts:
        assert time.monotonic() < until, (counts, replica_pids())
        time.sleep(0.2)


def waited_ready(home: Path, replicas: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while (row := told(home, "status")["models"][0])["running"] != replicas or row["ending"]:
        assert time.monotonic() < until, row
