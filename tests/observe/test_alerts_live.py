"""A fault of a real server fires the right alert at the right receiver, and its end resolves it.

Owns: this proof, with the real Prometheus and Alertmanager. May not know: the rules' cases.
Read next: `test_alerts.py`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.observe.alert_settings import AlertSettings
from firsthand.observe.asking import fired
from firsthand.observe.dashboards import expressions, metrics_dashboard, service_dashboard
from firsthand.observe.received import AlertRecord
from firsthand.observe.review import episodes_of_record
from tests.observe.monitoring import monitored, needs_both, receiving, until
from tests.observe.test_dashboards import asked
from tests.server.processes import Server, started


@needs_both
@pytest.mark.native
@pytest.mark.process
@pytest.mark.slow
def test_faults_reach_their_receivers_and_their_end_too(tmp_path: Path) -> None:
    """A slow request: P2, which is recorded and shown on the page. The engine is killed: P1, a
    message. Then the server hangs: P0, the phone."""
    home = {"FIRSTHAND_HOME": str(tmp_path)}
    record = AlertRecord(tmp_path / "alerts.jsonl")
    (tmp_path / "model").mkdir()
    model = write_micro_model(tmp_path / "model")
    with receiving(record) as address, started(tmp_path, model, "--threads", "1", **home) as server:
        settings = AlertSettings(
            targets=(f"127.0.0.1:{server.port}",),
            scrape_interval=0.5,
            down_for=1,
            restart_window=4,
            slow_request=0.005,
            slow_window=4,
            phone_url=f"{address}/P0",
            message_url=f"{address}/P1",
            record_url=f"{address}/record",
        )
        server.wait_ready()
        with monitored(tmp_path, settings) as prometheus:
            began_s = time.time()
            until(lambda: _scraped(prometheus), "nothing was scraped")
            _dashboards_answer(prometheus)
            _a_slow_request_is_recorded_and_shown(server, record)
            os.kill(server.engine_pids()[0], signal.SIGKILL)
            for ended in (False, True):
                _waits(record, "FirsthandEngineRestarted", "message", ended=ended)
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                for receiver in ("phone", "record"):
                    _waits(record, "FirsthandServiceDown", receiver, ended=False)
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            for receiver in ("phone", "record"):
                _waits(record, "FirsthandServiceDown", receiver, ended=True)
            found = {one.alert for one in fired(prometheus, began_s, time.time())}
    assert {"FirsthandEngineRestarted", "FirsthandServiceDown"} <= found
    notices, _ = record.read()
    kept = {one.alert for one in episodes_of_record(notices)}
    assert kept >= {"FirsthandEngineRestarted", "FirsthandServiceDown"}
    assert {one.severity for one in notices if one.receiver == "phone"} == {"P0"}
    assert {one.severity for one in notices if one.receiver == "message"} == {"P1"}
    assert {one.severity for one in notices if one.receiver == "record"} >= {"P0", "P1", "P2"}


def _a_slow_request_is_recorded_and_shown(server: Server, record: AlertRecord) -> None:
    """Of two scrapes one has to be from before it."""
    body = {"prompt": "a", "max_tokens": 300, "ignore_eos": True}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()
    for ended in (False, True):
        _waits(record, "FirsthandSlowRequest", "record", ended=ended)
        state = httpx.get(f"{server.url}/firsthand/engine/state", timeout=30).json()
        (shown,) = [one for one in state["alerts"] if one["alert"] == "FirsthandSlowRequest"]
        assert (shown["severity"], shown["entry"]) == ("P2", "FH-005")
        assert (shown["ended_s"] is not None) == ended


def _waits(record: AlertRecord, alert: str, receiver: str, *, ended: bool) -> None:
    what = f"{receiver} was not told that {alert} {'ended' if ended else 'fires'}"
    until(lambda: _told(record, alert, receiver, ended), what)


def _told(record: AlertRecord, alert: str, receiver: str, ended: bool) -> bool:
    notices, _ = record.read()
    return any(
        (one.alert, one.receiver, one.ended_s is not None) == (alert, receiver, ended)
        for one in notices
    )


def _dashboards_answer(prometheus: str) -> None:
    """Every query of theirs is one, and most have something to show of an idle server."""
    queries = [*expressions(service_dashboard(AlertSettings())), *expressions(metrics_dashboard())]
    with httpx.Client(base_url=prometheus, timeout=10) as client:
        shown = [bool(_ask(client, asked(one))) for one in queries]
    assert sum(shown) > 0.75 * len(queries)


def _scraped(prometheus: str) -> bool:
    """Twice at least: an increase needs two samples."""
    with httpx.Client(base_url=prometheus, timeout=10) as client:
        query = "count_over_time(firsthand_engine_restarts_total[1m]) >= 2"
        return bool(_ask(client, query))


def _ask(client: httpx.Client, query: str) -> list[Any]:
    answer = client.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    result: list[Any] = answer["data"]["result"]
    return result
