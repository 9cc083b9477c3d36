"""Peers that dawdle, and probes that must be answered meanwhile.

Owns: the same proof at the size of `make test` and at that of `make soak`.
May not know: how fast a machine is; the full size measures it first.
Read next: `serving.py`, `test_losses.py` (slow readers are there).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.soak.clients import Load
from tests.soak.conftest import Figure
from tests.soak.serving import Server, quantile, served, until

pytestmark = [
    pytest.mark.native,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of processes"),
]
FULL = pytest.param(True, marks=[pytest.mark.soak, pytest.mark.slow], id="full")
SIZES = [pytest.param(False, id="small"), FULL]
HOSTILE = [r"(a|aa)*b", "(" * 60 + "a" + ")*" * 60, "(a{1,900}){1,900}", r"(?:[a-z]{0,50}){50}x"]


@pytest.fixture(scope="module")
def server(micro_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(
        micro_folder, tmp_path_factory.mktemp("serve"), "--max-num-seqs", "8", "--no-shed"
    ) as found:
        yield found


def waits(server: Server, lasts_s: float) -> list[float]:
    """Of two good clients that ask one after the other."""
    seen = server.play(Load(server.port, workers=2, lasts_s=lasts_s, max_tokens=8, stream=False))
    assert {one.ended for one in seen} == {"done"}, seen[:3]
    return [one.total_s for one in seen]


@pytest.mark.slow
@pytest.mark.parametrize("full", SIZES)
def test_s_30_g_19_slow_senders_are_told_and_cost_the_others_nothing(
    micro_folder: Path, tmp_path: Path, full: bool, figure: Figure
) -> None:
    """They come within the time that each has to send its request in."""
    num, receive_s, lasts_s = (5_000, 10.0, 5.0) if full else (60, 1.0, 0.5)
    with served(
        micro_folder, tmp_path, "--receive-timeout", str(receive_s), "--max-connections", "8000"
    ) as server:
        quiet = waits(server, lasts_s)
        descriptors = server.num_descriptors()
        slow = Load(server.port, num=num, per_s=num / receive_s, send_per_s=1.0 / receive_s)
        with server.under(slow) as outcomes:
            until(lambda: server.metrics()["firsthand_connections"] > num / 4, "nobody came")
            busy = waits(server, lasts_s)
            seen = outcomes()
        told = [one.head_s for one in seen if one.status == 408]
        assert len(told) == num, f"{len(told)} of {num} were told"
        until(lambda: server.num_descriptors() <= descriptors + 2, "connections stay open")
    if full:
        figure("S-30: 5,000 slow senders told within", max(told), "s", "at most 11: they have 10")
        share = quantile(busy, 0.99) / quantile(quiet, 0.99)
        figure("S-30, G19: good clients' p99 beside them", share, "x quiet", "goal 1.1")
        middle = quantile(busy, 0.5) / quantile(quiet, 0.5)
        figure("S-30, G19: good clients' median beside them", middle, "x quiet", "at most 1.1")
        assert max(told) <= 11.0  # they are told when their time is up
        assert middle <= 1.1 and share <= 1.5


@pytest.mark.parametrize("full", SIZES)
def test_r_16_g_13_probes_are_answered_and_nothing_is_restarted_under_full_load(
    server: Server, full: bool, figure: Figure
) -> None:
    before = server.metrics()["firsthand_engine_restarts_total"]
    lasts_s, took_s = (20.0 if full else 1.0), []
    load = Load(server.port, workers=40, lasts_s=lasts_s, max_tokens=100, stream=False)
    with server.under(load) as outcomes, httpx.Client() as client:
        until(lambda: server.metrics()["firsthand_requests_running"] >= 8, "nothing runs")
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < lasts_s * 0.8:
            for path in ("/livez", "/readyz"):
                asked_s = time.perf_counter()
                assert client.get(server.url + path, timeout=60).status_code == 200
                took_s.append(time.perf_counter() - asked_s)
            time.sleep(0.01)
        assert {one.ended for one in outcomes()} == {"done"}
    assert server.metrics()["firsthand_engine_restarts_total"] == before
    if full:
        p99_ms = quantile(took_s, 0.99) * 1e3
        figure("R-16: probes under full load, p99", p99_ms, "ms", "at most 50")
        assert p99_ms <= 50.0


@pytest.mark.parametrize("full", SIZES)
def test_s_60_g_30_hostile_expressions_do_not_hold_the_loop(
    server: Server, full: bool, figure: Figure
) -> None:
    """Each ends as an answer or a refusal; nobody who asks something else waits for it."""

    def ask(number: int) -> int:
        body = {"prompt": "a", "max_tokens": 4, "structured_outputs": {}}
        # No two alike: a verdict that is remembered costs nothing.
        body["structured_outputs"] = {"regex": f"{HOSTILE[number % len(HOSTILE)]}{number}"}
        return asking.post(f"{server.url}/v1/completions", json=body).status_code

    num = 40 if full else 4
    took_s = []
    # One client asks for all: each new one reads certificates for 30 ms, and probes would see it.
    asking = httpx.Client(timeout=300)
    with asking, ThreadPoolExecutor(4) as pool, httpx.Client() as client:
        asked = [pool.submit(ask, number) for number in range(num)]
        while not all(one.done() for one in asked):
            began_s = time.perf_counter()
            assert client.get(server.url + "/livez", timeout=60).status_code == 200
            took_s.append(time.perf_counter() - began_s)
            time.sleep(0.005)
    assert {one.result() for one in asked} <= {200, 400, 503}
    assert server.status() == 200
    if full:
        p99_ms = quantile(took_s, 0.99) * 1e3
        figure("S-60, G30: probes beside hostile expressions, p99", p99_ms, "ms", "at most 20")
        assert p99_ms <= 20.0
