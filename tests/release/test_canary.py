"""A release beside the one that is served, for a share of the requests (F61)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.cli.admin import ask_admin
from firsthand.errors import EngineUnavailable, ReleaseRefused
from firsthand.release import staging
from firsthand.release.engines import check_canary
from firsthand.release.sockets import AdminSocket
from firsthand.release.store import Store
from firsthand.release.switching import Switch
from firsthand.version import VERSION
from tests.release.conftest import SUMS, stage_micro
from tests.server.processes import Server, launched

pytestmark = [pytest.mark.native, pytest.mark.process]
NUM = 40


@pytest.fixture
def two(tmp_path: Path, models: Path) -> Store:
    store = Store(tmp_path / "store")
    for seed in (1, 2):
        stage_micro(store, models / f"model-{seed}", seed, golden=False)
    Switch(store, None, None, SUMS).promote("1")
    return store


@contextmanager
def served(folder: Path, store: Store, *flags: str) -> Iterator[tuple[Server, Switch]]:
    admin = folder / "admin"
    arguments = (str(store.root / "current"), "--threads", "1", "--admin-socket", str(admin))
    with launched(folder, *arguments, *flags) as server:
        server.wait_ready(300)
        yield server, Switch(store, AdminSocket(admin), None, SUMS)


def ask(server: Server, name: str, **more: Any) -> httpx.Response:
    body = {"model": "micro", "prompt": "abc", "max_tokens": 2, "ignore_eos": True, **more}
    headers = {"x-request-id": name}
    return httpx.post(server.url + "/v1/completions", json=body, headers=headers, timeout=60)


def shares(server: Server) -> dict[str, int]:
    """By the release that the header names; whoever asks twice is answered by the same."""
    found: dict[str, int] = {}
    for at in range(NUM):
        answers = [ask(server, f"request-{at}") for _ in range(2 if at < 10 else 1)]
        assert {one.status_code for one in answers} == {200}
        (release,) = {one.headers["x-release"] for one in answers}
        found[release] = found.get(release, 0) + 1
    return found


@pytest.mark.slow
def test_a_share_of_the_requests_goes_to_it_and_promotion_ends_it(
    two: Store, tmp_path: Path
) -> None:
    old, new = (two.read(number).id[:16] for number in (1, 2))
    with served(tmp_path, two) as (server, switch):
        with pytest.raises(ReleaseRefused, match="it has had no drill"):
            switch.canary("2", "30%", "request")
        line = switch.canary("2", "30%", "request", force=True)
        assert line["server"]["name"] == "micro@2"
        found = shares(server)
        assert found.keys() == {old, new}
        assert 1 <= found[new] <= 30  # of 40, 12 expected; the same ids always go the same way
        metrics = httpx.get(server.url + "/metrics").text
        assert 'firsthand_canary_share_ratio{model="micro",release="2"} 0.3' in metrics
        assert 'firsthand_answers_total{finish_reason="length",model="micro@2"}' in metrics
        cards = {one["id"]: one for one in httpx.get(server.url + "/v1/models").json()["data"]}
        assert cards["micro@2"]["firsthand_release"][:16] == new
        assert cards["micro"]["firsthand_release"][:16] == old
        assert [cards[name]["firsthand_release_number"] for name in ("micro", "micro@2")] == [1, 2]
        assert cards["micro@2"]["firsthand_canary_share"] == 0.3
        assert ask(server, "by name", model="micro@2").headers["x-release"] == new
        assert httpx.get(server.url + "/readyz").status_code == 200
        with pytest.raises(ReleaseRefused, match="has a canary already"):
            switch.canary("2", "50%", "request", force=True)
        switch.promote("2", force=True)
        assert shares(server) == {new: NUM}
        metrics = httpx.get(server.url + "/metrics").text  # there is a way back, never tried
        assert re.search(r"^firsthand_release_drill_age_seconds [0-9.e-]+$", metrics, re.MULTILINE)
        assert ask(server, "gone", model="micro@2").status_code == 404
        switch.rollback()
        switch.canary("2", "100%", "key", force=True)  # without keys a request's id decides
        assert shares(server) == {new: NUM}
        assert switch.end_canary()["release"] == 2
        assert shares(server) == {old: NUM}
    events = [line["event"] for line in two.history.lines()]
    assert events[-3:] == ["rollback", "canary", "canary_ended"]


def test_one_of_another_engine_is_refused_before_anything_is_asked_or_read(
    two: Store, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "VERSION", "98.0.0")
    other = stage_micro(two, models / "model-3", 3, golden=False)
    nobody = AdminSocket(two.root / "nobody")
    with pytest.raises(ReleaseRefused, match=r"release 3 is of engine 98\.0\.0, .*release drill"):
        Switch(two, nobody, None, SUMS).canary("3", "5%", "request")
    with pytest.raises(ReleaseRefused, match="and a canary is of the same"):
        check_canary(other, VERSION)
    with pytest.raises(EngineUnavailable, match="no server answers"):
        Switch(two, nobody, None, SUMS).canary("2", "5%", "request", force=True)


@pytest.mark.slow
def test_one_that_loses_its_engine_is_taken_back_by_itself(two: Store, tmp_path: Path) -> None:
    old = two.read(1).id[:16]
    with served(tmp_path, two, "--chaos") as (server, switch):
        switch.canary("2", "50%", "request", force=True)
        wait_for(lambda: ask(server, "one", model="micro@2").status_code == 200)
        ask_admin(tmp_path / "admin", "chaos", {"fault": "kill", "model": "micro@2"})
        wait_for(lambda: two.history.last("canary_returned", 2) is not None)
        (line,) = server.told("canary_returned")
        assert (line["reason"], line["release"]) == ("engine", 2)
        assert shares(server) == {old: NUM}
        metrics = httpx.get(server.url + "/metrics").text
        assert 'firsthand_canary_returns_total{model="micro",reason="engine"} 1.0' in metrics
        with pytest.raises(
            ReleaseRefused,
            match="its engine was lost; give it another canary, or --force",
        ):
            Switch(two, AdminSocket(tmp_path / "admin"), None, SUMS).promote("2")


@pytest.mark.slow
def test_one_that_is_slow_is_taken_back_by_itself(two: Store, tmp_path: Path) -> None:
    with served(tmp_path, two, "--chaos") as (server, switch):
        switch.canary("2", "50%", "request", force=True)
        fault = {"fault": "slow", "amount": "60", "unit": "ms", "seconds": "600"}
        ask_admin(tmp_path / "admin", "chaos", {**fault, "model": "micro@2"})
        until = time.monotonic() + 120
        at = 0
        while two.history.last("canary_returned", 2) is None:
            assert time.monotonic() < until
            assert ask(server, f"slow-{at}").status_code == 200
            at += 1
        (line,) = server.told("canary_returned")
        assert line["reason"] == "latency"
        assert ask(server, "after").headers["x-release"] == two.read(1).id[:16]


def wait_for(holds: Any, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)
