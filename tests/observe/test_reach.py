"""Every metric of the catalogue is seen at more than nothing, in a real server under real faults.

Owns: that proof, and the reasons of those that cannot be seen here. May not know: what is counted.
Read next: `test_emitted.py`, the same without processes; `test_handbook_live.py`, the faults.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from firsthand.cli.admin import ask_admin
from firsthand.cli.chaos_clients import flood, read_nothing
from firsthand.observe.catalogue import CATALOGUE
from firsthand.observe.entry import When
from firsthand.observe.gpus import find_gpus
from tests.observe.monitoring import until
from tests.server.processes import Server, started, stream, with_golden

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow]

FLAGS = (
    *("--threads", "1", "--chaos", "--selfcheck-interval", "0.3", "--max-num-seqs", "4"),
    *("--max-num-queued-reqs", "24", "--stall-timeout", "1", "--receive-timeout", "2"),
    *("--speculative-config", '{"method": "ngram", "adaptive": false}'),
)
# Of a server; those of other programs are named with where they are, so that the list is whole.
ELSEWHERE = {
    "firsthand_quarantined": "a run of `data run` is a process of its own, whose report has it",
    "firsthand_arena_fragmentation_ratio": "a server has the paged cache, which has no arena",
}
# Of a server of releases.
WITH_RELEASES = {
    *("firsthand_release_drill_age_seconds", "firsthand_canary_share_ratio"),
    "firsthand_canary_returns",
}
# Of a server that has one.
WITH_CASCADES = {
    *("firsthand_cascade_answers", "firsthand_cascade_tokens", "firsthand_cascade_cost"),
}


class Watched:
    """A server, and what has been seen of its metrics to be more than 0."""

    def __init__(self, server: Server, admin: Path) -> None:
        self.server, self.admin = server, admin
        self.seen: set[str] = set()
        self.aliases: set[str] = set()

    def look(self) -> None:
        try:
            text = httpx.get(f"{self.server.url}/metrics", timeout=30).text
        except httpx.TransportError:
            return
        for family in text_string_to_metric_families(text):
            values = [one.value for one in family.samples if not one.name.endswith("_created")]
            if any(values):
                (self.aliases if family.name.startswith("vllm:") else self.seen).add(family.name)

    def until_seen(self, *names: str) -> None:
        left = set(names)

        def are_there() -> bool:
            self.look()
            left.difference_update(self.seen)
            return not left

        try:
            until(are_there, "")
        except AssertionError:
            raise AssertionError(f"{left} did not move") from None

    def chaos(self, fault: str, seconds: float, amount: float | None = None) -> None:
        ask_admin(self.admin, "chaos", {"fault": fault, "seconds": seconds, "amount": amount})

    def complete(self, num: int = 1, **body: Any) -> None:
        """So many at once, whatever they are answered."""
        wanted = {"prompt": "a", "max_tokens": 8, "ignore_eos": True, **body}
        url = f"{self.server.url}/v1/completions"

        def ask(number: int) -> None:
            headers = {"Idempotency-Key": f'"{os.urandom(8).hex()}-{number}"'}
            httpx.post(url, json=wanted, headers=headers, timeout=60)

        with beside(*[partial(ask, number) for number in range(num)]):
            pass


@contextmanager
def beside(*work: Callable[[], object]) -> Iterator[None]:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(120)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("reach")
    model, home = with_golden(folder)
    admin = folder / "admin"
    with started(folder, model, *FLAGS, "--admin-socket", str(admin), **home) as server:
        server.wait_ready(120)
        yield Watched(server, admin)


def test_reach_every_metric_is_seen_at_more_than_nothing(watched: Watched) -> None:
    ordinary_traffic(watched)
    clients_that_do_harm(watched)
    more_than_there_is_room_for(watched)
    faults_of_the_engine(watched)
    # Replicas are seen in test_cluster.py.
    away = {When.CLUSTER} if find_gpus() else {When.CLUSTER, When.GPU}
    excused = {entry.name for entry in CATALOGUE.values() if entry.when in away}
    elsewhere = WITH_RELEASES | WITH_CASCADES
    assert set(CATALOGUE) - watched.seen == excused | elsewhere, "seen at nothing, or not at all"
    tests = Path(__file__).parents[1]
    proofs = [
        path.read_text()
        for folder in ("release", "server")
        for path in (tests / folder).glob("test_*.py")
    ]
    assert all(any(name in proof for proof in proofs) for name in elsewhere), "proven there"
    aliases = {one.name for entry in CATALOGUE.values() for one in entry.aliases}
    assert aliases == watched.aliases
    assert not ELSEWHERE.keys() & CATALOGUE.keys(), "it is here now: prove it"


def ordinary_traffic(watched: Watched) -> None:
    watched.complete(prompt="the same long beginning of a prompt " * 4, n=2)
    watched.complete(prompt="the same long beginning of a prompt " * 4)
    url = watched.server.url
    httpx.post(f"{url}/v1/embeddings", json={"input": ["a", "b"]}, timeout=30).raise_for_status()
    watched.chaos("slow", 60, 20)
    with stream(watched.server, 400):  # and goes away
        pass
    watched.chaos("slow", 0)
    watched.until_seen("firsthand_cancelled", "firsthand_idempotency_bytes")
    watched.until_seen("firsthand_microbatch_size", "firsthand_selfcheck_ok")

    def guesses() -> bool:  # of a text that repeats itself
        watched.complete(prompt="abcd" * 30, temperature=0, max_tokens=40)
        watched.look()
        return "firsthand_speculations" in watched.seen

    until(guesses, "nothing was guessed")


def clients_that_do_harm(watched: Watched) -> None:
    with beside(lambda: read_nothing(watched.server.url, None, 1, 4)):
        watched.until_seen("firsthand_connections_cut")
    with socket.create_connection(("127.0.0.1", watched.server.port)) as malformed:
        malformed.sendall(b"GET / HTTP/9\r\n\r\n")
        malformed.recv(100)


def more_than_there_is_room_for(watched: Watched) -> None:
    url = watched.server.url
    watched.chaos("slow", 60, 20)
    with beside(lambda: flood(url, None, 48, 3)):
        watched.until_seen(
            *("firsthand_requests_waiting", "firsthand_queue_age_seconds_max"),
            *("firsthand_refused", "firsthand_degradation_level", "firsthand_drain_rate"),
        )
    watched.chaos("cache", 60, 0.9)
    with beside(lambda: flood(url, None, 8, 3)):
        watched.until_seen("firsthand_preemptions")
    watched.chaos("cache", 0)
    watched.chaos("slow", 0)


def faults_of_the_engine(watched: Watched) -> None:
    watched.chaos("fail", 60, 1)
    watched.complete(4)
    watched.until_seen("firsthand_step_errors", "firsthand_step_failed_sequences")

    def failed_together() -> bool:
        watched.complete(4)
        watched.look()
        return "firsthand_step_attempts" in watched.seen

    until(failed_together, "no step of several sequences failed")
    watched.chaos("fail", 0)
    watched.chaos("disk", 60)
    watched.complete()
    watched.until_seen("firsthand_log_lines_lost")
    watched.chaos("disk", 0)
    watched.chaos("corrupt", 60)
    watched.until_seen("firsthand_selfcheck_wrong")
    watched.chaos("kill", 0)
    watched.until_seen("firsthand_engine_restarts")
