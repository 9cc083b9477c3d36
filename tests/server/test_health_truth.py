"""Health under every fault that can be put into a server on purpose, and what leaks meanwhile.

Owns: one server that has them all, one after the other. May not know: what a fault does.
Read next: `test_lifecycle.py`; `tests/soak/test_losses.py`, the times of a hang and of an end.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.cli.admin import ask_admin
from firsthand.cli.chaos_clients import flood, read_nothing
from firsthand.server.chaos import FAULTS
from tests.server.processes import Server, started, with_golden

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.slow]

KEY, MARK = "health-key-0123456789", "zebra-9931"
AUTH = {"Authorization": f"Bearer {KEY}"}
FLAGS = (
    *("--threads", "1", "--chaos", "--selfcheck-interval", "0.3", "--max-num-seqs", "4"),
    *("--stall-timeout", "1", "--api-key", KEY),
)
QUIET_S = 1.0  # in which a fault that is none of health's business fails no probe
PROBE_S = 1.0
AMOUNTS: Mapping[str, float] = {"memory": 64, "cache": 0.5, "slow": 50, "upstream": 300}
# What a probe says of a fault: the check that fails. "hang": nothing at all.
TOLD = {"stall": "progress", "corrupt": "golden_tokens:micro", "kill": "engine:micro", "hang": ""}


@dataclass
class Ill:
    """A server under traffic, and all that it replied."""

    server: Server
    admin: Path
    replies: list[str] = field(default_factory=list)

    def chaos(self, fault: str, seconds: float) -> None:
        given = {"fault": fault, "seconds": seconds, "amount": AMOUNTS.get(fault)}
        ask_admin(self.admin, "chaos", given)

    def failed(self) -> set[str] | None:
        """The checks that fail now; None: no answer in time."""
        try:
            text = httpx.get(f"{self.server.url}/readyz?verbose", timeout=PROBE_S).text
        except httpx.TransportError:
            return None
        return {name for name, one in json.loads(text)["checks"].items() if not one["ok"]}

    def ask(self, body: object, path: str = "/v1/completions", **more: Any) -> None:
        with suppress(httpx.TransportError):
            given = {"headers": AUTH, "timeout": 60, "json": body, **more}
            reply = httpx.post(f"{self.server.url}{path}", **given)
            if reply.status_code != 200:
                self.replies.append(f"{reply.headers} {reply.text}")

    def traffic(self, ended: threading.Event) -> None:
        while not ended.wait(0.02):
            self.ask({"prompt": MARK, "max_tokens": 8, "ignore_eos": True})


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ill]:
    folder = tmp_path_factory.mktemp("ill")
    model, home = with_golden(folder)
    admin = folder / "admin"
    with started(folder, model, *FLAGS, "--admin-socket", str(admin), **home) as server:
        server.wait_ready(120)
        found = Ill(server, admin)
        ended = threading.Event()
        asking = [threading.Thread(target=found.traffic, args=(ended,)) for _ in range(2)]
        for one in asking:
            one.start()
        try:
            yield found
        finally:
            ended.set()
            for one in asking:
                one.join(90)


@contextmanager
def clients(ill: Ill, fault: str) -> Iterator[None]:
    """Those two of the faults that are clients."""
    work: dict[str, Callable[[], object]] = {
        "flood": partial(flood, ill.server.url, KEY, 24, QUIET_S),
        "client": partial(read_nothing, ill.server.url, KEY, 1, QUIET_S),
    }
    thread = threading.Thread(target=work.get(fault, lambda: None))
    thread.start()
    try:
        yield
    finally:
        thread.join(90)


@pytest.mark.parametrize(
    "limit_s", [60, pytest.param(10, marks=pytest.mark.soak)], ids=["any time", "10 s"]
)
@pytest.mark.parametrize("fault", FAULTS)
def test_g_13_health_tells_the_truth_of_every_fault(ill: Ill, fault: str, limit_s: float) -> None:
    """What stops answers is told, what does not is not; and it is well again by itself."""
    assert len(FAULTS) >= 12
    until(lambda: ill.failed() == set(), 120)
    ill.chaos(fault, 2.5 if fault in ("hang", "kill") else 60)
    with clients(ill, fault):
        if fault in TOLD:
            until(lambda: _tells(ill.failed(), TOLD[fault]), limit_s)
        else:
            end_s = time.monotonic() + QUIET_S
            while time.monotonic() < end_s:
                failed = ill.failed()
                assert failed is not None and failed <= {"queue"}, failed
                assert ill.server.status("/livez") == 200
    if fault not in ("hang", "kill", "flood", "client"):
        ill.chaos(fault, 0)
    until(lambda: ill.failed() == set(), max(limit_s, 30))


def _tells(failed: set[str] | None, check: str) -> bool:
    return failed is None if not check else failed is not None and check in failed


def until(holds: Callable[[], bool], limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_g_32_neither_replies_nor_the_log_leak_anything(ill: Ill) -> None:
    """S-73, S-74, OBS-4: no prompt, key, address, path or traceback, whatever went wrong."""
    for body in (
        {"prompt": MARK, "max_tokens": MARK}, {"prompt": [MARK]}, {MARK: 1}, [MARK], MARK,
        {"prompt": MARK, "model": MARK}, {"prompt": MARK * 400}, {"prompt": MARK, "n": -1},
    ):  # fmt: skip
        ill.ask(body)
        ill.ask(body, "/v1/chat/completions")
    ill.ask(None, content=b'{"prompt": "zebra-9931', json=None)
    ill.ask({"prompt": MARK}, headers={"Authorization": f"Bearer {MARK}{KEY}"})
    ill.ask({"prompt": MARK}, path="/nowhere")
    ill.chaos("fail", 60)
    ill.ask({"prompt": MARK, "max_tokens": 8})
    ill.chaos("fail", 0)
    assert len(ill.replies) > 15
    log = ill.server.log.read_text(encoding="utf-8")
    leaks = re.compile(r"0x[0-9a-f]{6,}|Traceback|/(?:home|tmp|usr|var|work)/|site-packages|\.py\b")
    for text in ill.replies:
        assert not leaks.search(text) and KEY not in text, text
    for line in log.splitlines():
        assert MARK not in line and KEY not in line, line
        assert not re.search(r"0x[0-9a-f]{6,}|Traceback", line), line
