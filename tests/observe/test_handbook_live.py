"""The handbook, run: an entry's fault in a real server, its alert, the doctor, the remedy, the end.

Owns: one server under one Prometheus, and these proofs. May not know: how a cause is recognised.
Read next: docs/handbook; `test_diagnosis.py`, the same without processes.

The commands are those of the pages, with shorter times and smaller amounts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from firsthand.cli.admin import ask_admin
from firsthand.cli.main import build_app
from firsthand.memory.machine import used_share
from firsthand.observe.alert_settings import AlertSettings
from tests.observe.monitoring import monitored, needs_both, until
from tests.server.processes import PROGRAM, Server, started, with_golden

pytestmark = [needs_both, pytest.mark.native, pytest.mark.process, pytest.mark.slow]

PAGES = Path("docs/handbook")
SCRAPE_S = 0.5
WINDOW_S = 4.0
MEMORY_MIB = 1024
FLAGS = (
    *("--threads", "1", "--chaos", "--selfcheck-interval", "0.5", "--max-num-seqs", "4"),
    *("--max-num-queued-reqs", "24", "--stall-timeout", "1", "--no-shed"),
)


@dataclass(frozen=True)
class Watched:
    """A server, what watches it, and the limits at which that speaks."""

    server: Server
    socket: Path
    prometheus: str
    limits: Path

    def chaos(self, entry: str, at: int = 0, **changed: float) -> dict[str, Any]:
        return called(*self.words(entry, at, **changed))

    def words(self, entry: str, at: int, **changed: float) -> list[str]:
        """The command of a page, with other amounts."""
        words = shlex.split(commands_of(entry)[at])[1:]
        for name, amount in changed.items():
            flag = f"--{name}"
            if flag in words:
                words[words.index(flag) + 1] = f"{amount:g}"
            else:
                words += [flag, f"{amount:g}"]
        return [*words, "--admin-socket", str(self.socket), "--url", self.server.url]

    def doctor(self, *about: str) -> list[dict[str, Any]]:
        """What is seen, of an entry or of everything."""
        asked = ("--prometheus", self.prometheus, "--url", self.server.url)
        limits = ("--window", str(WINDOW_S), "--config", str(self.limits))
        found = called("doctor", *about, *asked, *limits)["findings"]
        return [one for one in found if one["weight"] > 0]

    def fires(self, alert: str) -> bool:
        query = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        answer = httpx.get(f"{self.prometheus}/api/v1/query", params={"query": query}, timeout=10)
        return bool(answer.json()["data"]["result"])

    def wait_fires(self, *alerts: str) -> None:
        """Each of them, at one time or another."""
        left = set(alerts)

        def none_is_left() -> bool:
            left.difference_update([alert for alert in left if self.fires(alert)])
            return not left

        until(none_is_left, f"of {alerts} some do not fire")

    def wait_ended(self, *alerts: str) -> None:
        until(lambda: not any(map(self.fires, alerts)), f"{alerts} do not end")

    def load_anew(self) -> None:
        """The remedy of whatever lies in the engine: weights and memory as on the first day."""
        ask_admin(self.socket, "sleep", {})
        ask_admin(self.socket, "wake_up", {})
        self.server.wait_ready(60)

    def wait_names(self, entry: str, cause: str) -> None:
        """The doctor has it, by its entry and with evidence, before all others of the entry."""
        found: list[dict[str, Any]] = []

        def is_first() -> bool:
            found[:] = self.doctor(entry)
            return bool(found) and found[0]["cause"] == cause

        until(is_first, f"{cause} is not named: {found}")
        assert found[0]["entry"] == entry
        assert found[0]["evidence"]


def commands_of(entry: str) -> list[str]:
    text = (PAGES / f"{entry}.md").read_text(encoding="utf-8")
    return re.findall(r"^firsthand chaos .*$", text, re.MULTILINE)


def called(*arguments: str) -> dict[str, Any]:
    shown = CliRunner().invoke(build_app(), [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def limits_of(server: Server) -> AlertSettings:
    used = used_share() or 0.0
    whole_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    short: dict[str, Any] = dict.fromkeys(
        ("down_for", "not_ready_for", "selfcheck_for", "error_for", "latency_for", "queue_for"),
        SCRAPE_S,
    )
    short |= dict.fromkeys(("refused_for", "kv_for", "memory_for", "step_age_for"), SCRAPE_S)
    windows = ("error", "latency", "restart", "step_error", "slow", "log", "lost", "stalled")
    short |= {f"{name}_window": 4 * SCRAPE_S for name in windows}
    return AlertSettings(
        targets=(f"127.0.0.1:{server.port}",),
        scrape_interval=SCRAPE_S,
        ttft_p99=0.25,
        latency_p99=2.5,
        queue_p95=0.02,
        kv_used_ratio=0.85,
        memory_used_ratio=used + 0.5 * MEMORY_MIB / whole_mib,
        step_age=1.0,
        error_requests=1,
        **short,
    )


def write_limits(limits: AlertSettings, file: Path) -> Path:
    def shown(value: object) -> str:
        return json.dumps(list(value) if isinstance(value, tuple) else value)

    given = asdict(limits).items()
    file.write_text("".join(f"{name} = {shown(value)}\n" for name, value in given))
    return file


USUAL: dict[str, Any] = {"prompt": "a", "max_tokens": 4}


@contextmanager
def traffic(server: Server, body: dict[str, Any] = USUAL, pause_s: float = 0.02) -> Iterator[None]:
    """Somebody asks, all the time, whatever the answer is."""
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            while not ended.is_set():
                with suppress(httpx.HTTPError):
                    client.post("/v1/completions", json=body)
                ended.wait(pause_s)

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        yield
    finally:
        ended.set()
        for asker in askers:
            asker.join()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("handbook")
    model, home = with_golden(folder)
    admin = folder / "admin"
    flags = (*FLAGS, "--admin-socket", str(admin))
    with started(folder, model, *flags, **home) as server:
        server.wait_ready(120)
        limits = limits_of(server)
        file = write_limits(limits, folder / "limits.toml")
        with traffic(server), monitored(folder, limits) as prometheus:
            found = Watched(server, admin, prometheus, file)
            time.sleep(WINDOW_S)  # what is usual
            yield found


@contextmanager
def beside(watched: Watched, entry: str, **changed: float) -> Iterator[None]:
    """A fault that the command itself is a part of: until it is stopped."""
    command = [sys.executable, "-c", PROGRAM, *watched.words(entry, 0, seconds=600, **changed)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_memory_that_creeps_and_clients_that_read_nothing_are_two(watched: Watched) -> None:
    """FH-009 and FH-015 at once; the engine's memory is its own again when it is loaded anew."""
    watched.chaos("FH-009", mib=MEMORY_MIB, seconds=20)
    with beside(watched, "FH-015", num=2):
        watched.wait_names("FH-015", "clients-stall")
        watched.wait_fires("FirsthandMemoryHigh")
    watched.wait_names("FH-009", "memory-high")
    watched.load_anew()
    watched.wait_ended("FirsthandMemoryHigh", "FirsthandClientsStalled")


def test_slow_steps_and_a_full_disk_are_two(watched: Watched) -> None:
    """FH-005 and FH-014 at once."""
    watched.chaos("FH-014")
    watched.chaos("FH-005", ms=300)
    watched.wait_fires("FirsthandLogLost", "FirsthandFirstTokenSlow")
    watched.wait_names("FH-005", "slow-steps")
    watched.wait_names("FH-014", "log-lost")
    assert {"slow-steps", "log-lost"} <= {one["cause"] for one in watched.doctor()}
    watched.chaos("FH-014", seconds=0)
    watched.chaos("FH-005", seconds=0)
    watched.wait_ended("FirsthandLogLost", "FirsthandFirstTokenSlow")


def test_an_upstream_that_grows_slow_is_no_slow_step(watched: Watched) -> None:
    """FH-005, S117: from 800 ms on, no answer fails."""
    watched.chaos("FH-005", at=1)
    watched.wait_fires("FirsthandFirstTokenSlow")
    watched.wait_names("FH-005", "way-slow")
    watched.chaos("FH-005", at=1, seconds=0)
    watched.wait_ended("FirsthandFirstTokenSlow")


def test_an_engine_without_a_step(watched: Watched) -> None:
    """FH-010."""
    watched.chaos("FH-010")
    watched.wait_fires("FirsthandEngineStalled")
    watched.wait_names("FH-010", "engine-stalls")
    watched.load_anew()
    watched.wait_ended("FirsthandEngineStalled")


def test_a_page_of_the_weights_that_holds_other_bytes(watched: Watched) -> None:
    """FH-003: golden tokens find it; weights that are read anew are right."""
    watched.chaos("FH-003")
    watched.wait_fires("FirsthandSelfCheckWrong")
    watched.wait_names("FH-003", "weights-wrong")
    watched.load_anew()
    watched.wait_ended("FirsthandSelfCheckWrong")


def test_steps_that_fail(watched: Watched) -> None:
    """FH-004, FH-012, FH-013 from one fault: the doctor has its cause first."""
    alerts = ("FirsthandStepErrors", "FirsthandErrorRatioHigh", "FirsthandLogEvent")
    watched.chaos("FH-004")
    watched.wait_fires(*alerts)
    watched.wait_names("FH-012", "steps-fail")
    watched.wait_names("FH-013", "log-lines")
    watched.wait_names("FH-004", "errors")
    watched.load_anew()
    watched.wait_ended(*alerts)


def test_engines_that_are_killed(watched: Watched) -> None:
    """FH-002 and FH-011, G13: once it ends, the server is ready again by itself."""
    watched.chaos("FH-002")
    watched.wait_fires("FirsthandEngineRestarted", "FirsthandNotReady")
    watched.wait_names("FH-002", "check-fails")
    watched.wait_names("FH-011", "engine-lost")
    watched.chaos("FH-002", seconds=0)
    watched.server.wait_ready(60)
    watched.wait_ended("FirsthandEngineRestarted", "FirsthandNotReady")


def test_more_is_asked_than_there_is_room_for(watched: Watched) -> None:
    """FH-006 and FH-007: the remedy is that less is asked. (So small a model is quicker than HTTP,
    and would never have a queue: its steps are made slower.)"""
    watched.chaos("FH-005", ms=20)
    with beside(watched, "FH-007", num=60):
        watched.wait_fires("FirsthandQueueSlow", "FirsthandRefusing")
        watched.wait_names("FH-006", "queue-long")
        watched.wait_names("FH-007", "door-shut")
    watched.chaos("FH-005", seconds=0)
    watched.wait_ended("FirsthandQueueSlow", "FirsthandRefusing")


def test_a_cache_that_is_full(watched: Watched) -> None:
    """FH-008."""
    watched.chaos("FH-008", share=0.9)
    watched.chaos("FH-005", ms=20)
    with beside(watched, "FH-006", num=8):
        watched.wait_fires("FirsthandCacheFull")
        watched.wait_names("FH-008", "cache-full")
    watched.load_anew()
    watched.wait_ended("FirsthandCacheFull")


def test_a_process_that_does_nothing(watched: Watched) -> None:
    """FH-001; it comes back by itself."""
    watched.chaos("FH-001", seconds=8)
    watched.wait_names("FH-001", "process-hangs")
    watched.wait_fires("FirsthandServiceDown")
    watched.wait_ended("FirsthandServiceDown")


def test_trouble_without_an_entry_is_called_unknown(watched: Watched) -> None:
    """With its evidence."""
    found: list[dict[str, Any]] = []

    def is_unknown() -> bool:
        found[:] = [one for one in watched.doctor() if one["entry"] is None]
        return bool(found)

    with traffic(watched.server, {"max_tokens": "many"}, pause_s=0.001):
        until(is_unknown, "nothing is unknown")
    assert found[0]["cause"] == "unknown"
    assert any("4xx" in fact for fact in found[0]["evidence"])
