"""More work than there is room for: refused at once, by name; what was let in is finished.

Owns: the same proof at the size of `make test`, where outcomes are counted, and at that of
`make soak`, where goodput, waits and memory have numbers.
May not know: how fast a machine is; the full size measures it first.
Read next: `serving.py`, `test_losses.py`.
"""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

import pytest

from tests.soak.clients import Load, Outcome
from tests.soak.conftest import Figure
from tests.soak.serving import Server, quantile, rss_bytes, served, until

pytestmark = [
    pytest.mark.native,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of processes"),
]
NUM_RUNNING, NUM_WAITING = 4, 16
FLAGS = (
    "--max-num-seqs", str(NUM_RUNNING), "--max-num-queued-reqs", str(NUM_WAITING),
    "--max-connections", "20000", "--no-shed",
)  # fmt: skip
NUM_FLOODS = 3
SECONDS = 15.0  # of a flood, or of what it is compared with
TOKENS = 1500  # of an answer: so many that the engine, not the clients, is what is short


@pytest.fixture(scope="module")
def server(long_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(long_folder, tmp_path_factory.mktemp("serve"), *FLAGS) as found:
        yield found


def refusals(outcomes: list[Outcome]) -> list[Outcome]:
    """Each says what it is and when to come back, in few bytes."""
    found = [one for one in outcomes if one.status != 200]
    for one in found:
        assert (one.status, one.ended, one.code) == (503, "refused", "queue_full"), one
        assert int(one.retry_after) >= 1 and one.body_bytes < 1024
    return found


def peak_per_s(server: Server, workers: int) -> float:
    """Answers in a second when as many ask as may run, and some wait."""
    load = Load(server.port, workers=workers, lasts_s=SECONDS, max_tokens=TOKENS, stream=False)
    return answers_per_s(server.play(load))


def answers_per_s(outcomes: list[Outcome]) -> float:
    """From the first client's coming to the last answer's end."""
    done = [one for one in outcomes if one.ended == "done"]
    began_s, ended_s = min(one.at_s for one in done), max(one.at_s + one.total_s for one in done)
    return len(done) / (ended_s - began_s)


def test_o_2_o_3_what_is_over_is_refused_and_what_was_let_in_is_finished(server: Server) -> None:
    before, descriptors = server.metrics(), server.num_descriptors()
    outcomes = server.play(Load(server.port, num=150, max_tokens=150))
    done = [one for one in outcomes if one.ended == "done"]
    assert len(done) + len(refusals(outcomes)) == len(outcomes) == 150
    assert len(done) >= NUM_RUNNING + NUM_WAITING - NUM_WAITING // 8
    admitted = server.metrics()["firsthand_admitted_total"] - before["firsthand_admitted_total"]
    assert admitted == len(done), "one that was let in has no answer"
    until(server.is_empty, "blocks or places are never free again")
    until(lambda: server.num_descriptors() <= descriptors + 2, "connections stay open")


@pytest.mark.slow
def test_a_thousand_open_connections_and_streams_cost_little(
    micro_folder: Path, tmp_path: Path, figure: Figure
) -> None:
    """Idle ones, then as many streams that wait for their turn."""
    flags = ("--max-num-seqs", "1", "--max-num-queued-reqs", "1200", "--no-shed",
             "--max-queue-wait", "0", "--receive-timeout", "60")  # fmt: skip
    with served(micro_folder, tmp_path, *flags) as server, ExitStack() as held:
        server.play(Load(server.port, num=20, max_tokens=20))
        pid, engine = server.process.pid, server.engine_pid or 0
        before, engine_before = rss_bytes(pid), rss_bytes(engine)
        for _ in range(1000):
            held.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))
        assert server.status() == 200
        idle = rss_bytes(pid) - before
        figure("1,000 idle connections", idle / 1e6, "MB", "at most 50")
        assert idle < 50e6
        held.close()
        load = Load(server.port, num=1000, max_tokens=480, vanish=False)
        with server.under(load):
            until(lambda: server.metrics()["firsthand_admitted_open"] >= 900, "they did not come")
            assert server.status("/livez") == 200
            grown = rss_bytes(pid) - before, rss_bytes(engine) - engine_before
        figure(
            "1,000 streams that wait: server", grown[0] / 1e6, "MB", "at most 50 with the engine"
        )
        figure("1,000 streams that wait: engine", grown[1] / 1e6, "MB")
        assert sum(grown) < 50e6, f"{grown} bytes"
        until(server.is_empty, "blocks or places are never free again")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("times", [2, 5, 10, 20])
def test_o_1_o_2_o_3_g_5_goodput_stands_in_a_flood(
    server: Server, times: int, figure: Figure
) -> None:
    """The peak, with as many clients as may run and wait, is measured before and after each flood:
    a machine that others use moves by more than what is to be seen."""
    workers = NUM_RUNNING + NUM_WAITING // 2
    peaks = [peak_per_s(server, workers)]
    rss_bytes, per_s = server.rss_bytes(), peaks[0] * times
    floods: list[float] = []
    refused: list[Outcome] = []
    for _ in range(NUM_FLOODS):
        outcomes = server.play(
            Load(
                server.port, num=int(per_s * SECONDS), per_s=per_s, max_tokens=TOKENS, stream=False
            )
        )
        now_refused = refusals(outcomes)
        refused += now_refused
        num_done = sum(one.ended == "done" for one in outcomes)
        assert num_done + len(now_refused) == len(outcomes), "one that was let in was lost"
        floods.append(answers_per_s(outcomes))
        back_s = until(server.is_empty, "not back to normal", 10.0)
        peaks.append(peak_per_s(server, workers))
    goodput = fmean(floods) / fmean(peaks)
    refused_s = quantile([one.head_s for one in refused], 0.99)
    grown = server.rss_bytes() / rss_bytes
    least = 0.95 if times <= 10 else 0.90
    name = f"O-1 at {times:2} x {fmean(peaks):.1f} answers/s"
    figure(f"{name}: goodput", goodput, "of the peak", f"at least {least}")
    figure(f"{name}: refusals p99", refused_s * 1e3, "ms", "at most 50")
    figure(f"{name}: memory", grown, "x", "at most 1.10")
    figure(f"{name}: back to normal after", back_s, "s", "at most 10")
    assert goodput >= least
    assert refused_s <= 0.050
    assert grown <= 1.10
    assert len({one.retry_after for one in refused}) > 1 or times < 5, "they all come back at once"


@pytest.mark.soak
@pytest.mark.slow
def test_o_6_the_urgent_are_served_in_a_flood_of_others(server: Server, figure: Figure) -> None:
    """Urgent at a third of what can be served, the others at three times each."""
    rate = peak_per_s(server, 12)
    with ExitStack() as held:
        playing = {}
        for name, times in (("normal", 3.0), ("background", 3.0), ("urgent", 0.33)):
            load = Load(
                server.port,
                num=int(rate * times * SECONDS),
                per_s=rate * times,
                max_tokens=TOKENS,
                stream=False,
                headers={"X-Priority": name},
            )
            playing[name] = held.enter_context(server.under(load))
        ended = {name: Counter(one.ended for one in seen()) for name, seen in playing.items()}
    share = ended["urgent"]["done"] / ended["urgent"].total()
    figure("O-6: urgent requests answered in a flood of others", share, "", "at least 0.994")
    assert ended["urgent"]["done"] >= 0.994 * ended["urgent"].total(), ended
    assert ended["background"]["refused"] > 0.5 * ended["background"].total(), ended
    until(server.is_empty, "not back to normal")
