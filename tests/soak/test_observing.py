"""What it costs to see everything: one server with all of it, one with none, in turns.

Owns: the share of throughput that observing takes, and an open page. Only `make soak` runs these; a
machine that does something else meanwhile shows it here.
May not know: how anything is observed; what is left out is replaced by nothing.
Read next: `test_speed.py`, whose load this is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest

from tests.server.page.conftest import CHROMIUM, opening
from tests.server.test_tracing import receiving
from tests.soak.conftest import Figure
from tests.soak.serving import Server, served
from tests.soak.test_speed import NUM, http_s

pytestmark = [
    pytest.mark.native,
    pytest.mark.process,
    pytest.mark.model,
    pytest.mark.soak,
    pytest.mark.slow,
]
PAIRS = 12
ROUND = ("all", "none", "alone", "rest")  # "alone": everything, and nobody watches
SCRAPE_S = 1.0  # fifteen times as often as a Prometheus asks
MAIN = "from firsthand.cli.main import main; main()"
NO_RECORDER = """
from firsthand.observe.recorder import Recorder
Recorder.follow = lambda self, service: None
Recorder.submitted = lambda *given: None
"""
NOTHING = f"""{NO_RECORDER}
from firsthand.observe.metrics import Metrics
from firsthand.server import until_end
from firsthand.server.ending import Ends
Metrics.follow = lambda self, service: lambda: None
Metrics.finished = lambda *given: None
Ends.__call__ = lambda *given: None
async def no_lag(observe): pass
until_end.watch_lag = no_lag
"""


def flags(*more: str) -> tuple[str, ...]:
    return ("--max-model-len", "2048", "--no-shed", "--threads", str(os.cpu_count()), *more)


@contextmanager
def watched(server: Server) -> Iterator[None]:
    """Somebody reads the feed, and a Prometheus scrapes."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(SCRAPE_S):
            httpx.get(f"{server.url}/metrics", timeout=30)

    def read() -> None:
        with httpx.stream("GET", f"{server.url}/firsthand/engine/stream", timeout=60) as feed:
            for _ in feed.iter_raw():
                if ended.is_set():
                    return

    readers = [threading.Thread(target=one) for one in (scrape, read)]
    for one in readers:
        one.start()
    try:
        yield
    finally:
        ended.set()
        for one in readers:
            one.join(60)


def test_reach_all_of_it_costs_two_percent_the_recorder_one(
    smollm2_path: Path, tmp_path: Path, figure: Figure
) -> None:
    """Three servers, asked in turns, forwards and backwards: with everything, without the recorder,
    with nothing. Each is compared with the one beside it."""
    folders = [tmp_path / name for name in ("all", "rest", "none")]
    for folder in folders:
        folder.mkdir()
    with (
        receiving() as (_, url),
        served(smollm2_path, folders[0], *flags("--otlp-traces-endpoint", url)) as whole,
        served(
            smollm2_path,
            folders[1],
            *flags("--otlp-traces-endpoint", url),
            program=("-c", NO_RECORDER + MAIN),
        ) as rest,
        served(smollm2_path, folders[2], *flags(), program=("-c", NOTHING + MAIN)) as none,
    ):
        costs: dict[str, list[float]] = {"all": [], "recorder": []}
        for server in (whole, rest, none):
            http_s(server, 9000, stream=True)
        for number in range(PAIRS):
            took_s: dict[str, float] = {}
            for name in ROUND if number % 2 else ROUND[::-1]:
                server = {"rest": rest, "none": none}.get(name, whole)
                with watched(server) if name == "all" else nullcontext():
                    prompts = number + 1000 * ROUND.index(name)  # found in nobody's cache
                    took_s[name] = http_s(server, prompts, stream=True)
            costs["all"].append(took_s["all"] / took_s["none"] - 1)
            costs["recorder"].append(took_s["alone"] / took_s["rest"] - 1)
    for name, limit in (("all", 0.02), ("recorder", 0.01)):
        found = sorted(costs[name])
        what = f"observing: {name}, {NUM} clients"
        figure(what, 100 * median(found), "%", f"at most {limit:.0%}")
        spread = f"{found[PAIRS // 4]:+.1%} … {found[-1 - PAIRS // 4]:+.1%}"
        figure(f"observing: {name}, the middle half of {PAIRS} pairs: {spread}", PAIRS, "pairs")
    assert median(costs["all"]) <= 0.02 and median(costs["recorder"]) <= 0.01


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_reach_an_open_page_slows_the_engine_by_one_percent(
    smollm2_path: Path, tmp_path: Path, figure: Figure
) -> None:
    """The engine has one processor, the browser the other: what is measured is the engine's."""
    driver: Any = pytest.importorskip("playwright.sync_api")
    plain = ("--max-model-len", "2048", "--no-shed", "--threads", "1")
    slowed = []
    with served(smollm2_path, tmp_path, *plain) as server, driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with opening(browser, server.url) as open_tab:
            page = open_tab("#/engine")
            http_s(server, 9000, stream=True)
            for number in range(PAIRS // 2):
                seconds: list[float] = []
                for where in ("#/engine", "about:blank"):
                    page.goto(f"{server.url}/{where}" if where[0] == "#" else where)
                    page.wait_for_timeout(500)
                    seconds.append(http_s(server, 10 * number + len(seconds), stream=True))
                slowed.append(seconds[0] / seconds[1] - 1)
        browser.close()
    figure("observing: an open page, median", 100 * median(slowed), "%", "at most 1 %")
    figure("observing: an open page, worst pair", 100 * max(slowed), "%")
    assert median(slowed) <= 0.01
