"""Clients that vanish, engines that die or hang, servers that are told to end, all under load.

Owns: the same proof at the size of `make test` and at that of `make soak`.
May not know: how fast a machine is: small sizes wait for conditions, and count.
Read next: `serving.py`; `test_overload.py`, more work than there is room for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.clients import STATES, Load, Outcome
from tests.soak.conftest import Figure
from tests.soak.serving import Server, served, until

pytestmark = [
    pytest.mark.native,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of processes"),
]
FULL = pytest.param(True, marks=[pytest.mark.soak, pytest.mark.slow], id="full")
NUM_DEATHS = {signal.SIGKILL: 25, signal.SIGSEGV: 10}
SIZES = [pytest.param(False, id="small"), FULL]


@pytest.fixture(scope="module")
def server(micro_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With room for all, so that nobody is refused."""
    folder = tmp_path_factory.mktemp("serve")
    with served(
        micro_folder, folder, "--max-num-seqs", "8", "--max-num-queued-reqs", "20000", "--no-shed",
        "--max-queue-wait", "0", "--max-connections", "20000",
    ) as found:  # fmt: skip
        yield found


def answers(server: Server) -> None:
    (one,) = server.play(Load(server.port, num=1, max_tokens=5))
    assert one.ended == "done", one


def all_told(outcomes: list[Outcome]) -> list[Outcome]:
    """Those that were let in. Each has its whole answer, or an error in its place."""
    let_in = [one for one in outcomes if one.status == 200]
    lost = [one for one in let_in if one.ended not in ("done", "error")]
    assert not lost, lost[:3]
    return let_in


@pytest.mark.parametrize("full", SIZES)
def test_g_14_clients_that_vanish_leave_nothing_behind(
    server: Server, full: bool, figure: Figure
) -> None:
    num = 10_000 if full else 150
    answers(server)
    descriptors = server.num_descriptors()
    lines = len(server.log.read_bytes().splitlines())
    per_s = 2_000.0 if full else 0.0
    outcomes = server.play(
        Load(server.port, num=num, per_s=per_s, max_tokens=100, vanish=True, body={"n": 2})
    )
    took_s = until(server.is_empty, "blocks or places are never free again")
    if full:
        figure("G14: 10,000 vanished; every block free after", took_s, "s", "at most 1")
        assert took_s <= 1.0
    until(lambda: server.num_descriptors() <= descriptors + 2, "connections stay open")
    vanished = {one.state for one in outcomes if one.ended == "vanished"}
    assert vanished == set(STATES)
    more = server.log.read_text(encoding="utf-8").splitlines()[lines:]
    unasked = [line for line in more if json.loads(line).get("event") != "request"]
    assert len(unasked) <= 100, unasked[:3]
    answers(server)


@pytest.mark.parametrize("full", SIZES)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV], ids=lambda sent: sent.name)
def test_g_12_an_engine_that_dies_is_told_of_and_replaced(
    server: Server, sent: signal.Signals, full: bool, figure: Figure
) -> None:
    """Also many times in a row, where the pause before a start has reached its longest."""
    told, ready = [], []
    for _ in range(NUM_DEATHS[sent] if full else 1):
        before = server.metrics()["firsthand_engine_restarts_total"]
        load = Load(server.port, num=24, max_tokens=450)
        with server.under(load) as outcomes:
            until(lambda: server.metrics()["firsthand_requests_running"] >= 8, "nothing runs")
            pid = server.engine_pid
            assert pid is not None
            os.kill(pid, sent)
            killed_s = time.perf_counter()
            seen = outcomes()
            told_s = time.perf_counter() - killed_s
        let_in = all_told(seen)
        errors = [one for one in let_in if one.ended == "error"]
        assert errors and {one.code for one in errors} <= {"loading", "internal_error"}
        told.append(told_s)
        assert server.status("/livez") == 200
        ready.append(until(lambda: server.status() == 200, "it is never ready again"))
        assert server.metrics()["firsthand_engine_restarts_total"] == before + 1
        assert server.is_empty()
        answers(server)
    if full:
        name = f"G12: {len(told)} x {sent.name}"
        figure(f"{name}: open streams are told within", max(told), "s", "at most 2")
        figure(f"{name}: ready again within", max(ready), "s", "at most 10")
        assert max(told) <= 2.0 and max(ready) <= 10.0


@pytest.mark.slow
@pytest.mark.parametrize("full", SIZES)
def test_g_12_g_13_an_engine_that_hangs_is_told_of_and_replaced(
    server: Server, full: bool, figure: Figure
) -> None:
    for _ in range(5 if full else 1):
        with server.under(Load(server.port, num=24, max_tokens=450)) as outcomes:
            until(lambda: server.metrics()["firsthand_requests_running"] >= 8, "nothing runs")
            pid = server.engine_pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            stopped_s = time.perf_counter()
            seen = outcomes()
            told_s = time.perf_counter() - stopped_s
        assert [one for one in all_told(seen) if one.ended == "error"]
        if full:
            figure("G12, G13: a hung engine's streams are told within", told_s, "s", "at most 10")
            assert told_s <= 10.0
        until(lambda: server.status() == 200, "it is never ready again")
        answers(server)


@pytest.mark.parametrize("full", SIZES)
def test_o_9_g_23_a_drain_under_load_loses_nothing(
    micro_folder: Path, tmp_path: Path, full: bool, figure: Figure
) -> None:
    """Each that was let in is answered to its end, or is told; new ones are refused or find nobody;
    the exit code is 0."""
    for number in range(30 if full else 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        with served(micro_folder, folder, "--max-num-seqs", "4") as server:
            with server.under(Load(server.port, num=40, per_s=60.0, max_tokens=100)) as outcomes:
                until(lambda: server.metrics()["firsthand_admitted_total"] > 8, "nobody came")
                server.process.send_signal(signal.SIGTERM)
                seen = outcomes()
            assert server.process.wait(60) == 0
        let_in = all_told(seen)
        assert len(let_in) >= 8
        refused = [one for one in seen if one.status not in (0, 200)]
        assert {(one.status, one.ended) for one in refused} <= {(503, "refused")}
    if full:
        figure("O-9, G23: drains under load, nothing lost", 30, "times")


@pytest.mark.parametrize("full", SIZES)
def test_s_37_g_19_slow_readers_cost_little(server: Server, full: bool, figure: Figure) -> None:
    """They get everything; others do not wait for them."""
    num = 200 if full else 20
    answers(server)
    before = server.rss_bytes()
    slow = Load(
        server.port, num=num, max_tokens=400, read_per_s=20_000, body={"logprobs": 3},
        limit_s=600.0,
    )  # fmt: skip
    with server.under(slow) as outcomes:
        until(lambda: server.metrics()["firsthand_admitted_open"] >= num // 2, "nobody reads")
        others = server.play(Load(server.port, workers=2, lasts_s=1.0, max_tokens=5))
        grown = server.rss_bytes() - before
        seen = outcomes()
    assert others and {one.ended for one in others} == {"done"}
    assert {one.ended for one in seen} == {"done"}
    figure(f"S-37: {num} slow readers", grown / num / 2**20, "MiB each", "at most 1")
    assert grown <= max(num << 20, 32 << 20), f"{grown} bytes for {num} readers"
    until(server.is_empty, "blocks or places are never free again")
