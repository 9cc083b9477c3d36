"""What became of alerts: the record, and the judgement of episodes.

Owns: these proofs, on written episodes. May not know: a running Prometheus.
Read next: `test_alerts_live.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.observe.asking import fired
from firsthand.observe.received import AlertRecord, Answer, Notice, notices_of
from firsthand.observe.review import (
    DAY_S,
    Episode,
    Verdict,
    episodes_of_record,
    episodes_of_series,
    review,
)
from tests.cli.test_commands import call, called
from tests.observe.monitoring import receiving

NOW_S = 100 * DAY_S
TIERS = {"Down": "P0", "Slow": "P1", "Quiet": "P1", "Noted": "P2"}


def webhook(status: str = "firing", **more: Any) -> dict[str, Any]:
    """As Alertmanager 0.25 sends it, without what is not read."""
    alert = {
        "status": status,
        "labels": {"alertname": "Down", "severity": "P0", "job": "x"},
        "annotations": {"summary": "it is down"},
        "startsAt": "2026-11-30T07:00:00.5Z",
        "endsAt": "2026-11-30T07:01:00Z" if status == "resolved" else "0001-01-01T00:00:00Z",
        "fingerprint": "a1",
        **more,
    }
    return {"version": "4", "receiver": "phone", "alerts": [alert]}


def test_a_receiver_keeps_what_it_is_sent(tmp_path: Path) -> None:
    record = AlertRecord(tmp_path / "sub" / "alerts.jsonl")
    with receiving(record) as address:
        for body in (webhook(), webhook("resolved")):
            assert httpx.post(f"{address}/P0", json=body).status_code == 200
        for content in (b"{", b"[]", b"{}", b'{"version": "4"}', b"[" * 100_000, b"\xff"):
            assert httpx.post(address, content=content).status_code == 400
        broken = webhook() | {"alerts": [{"labels": 1}]}
        assert httpx.post(address, json=broken).status_code == 400
        assert httpx.post(address, content=b"x" * ((1 << 20) + 1)).status_code == 413
        assert httpx.get(address).status_code == 501
    first, last = record.read()[0]
    assert (first.alert, first.severity, first.receiver) == ("Down", "P0", "phone")
    assert first.ended_s is None
    assert last.ended_s is not None
    assert last.ended_s - last.began_s == 59.5
    assert len(episodes_of_record([first, first, last])) == 1


def test_a_record_is_only_added_to_and_survives_what_is_no_line(tmp_path: Path) -> None:
    record = AlertRecord(tmp_path / "alerts.jsonl")
    assert record.read() == ([], [])
    (notice,) = notices_of(webhook(), 5.0)
    record.add(notice)
    for torn in (b"\xff\n", b"{}\n", b"[]\n", b'{"kind": "notice"}\n', b'{"kind": "not', b"\n"):
        with record.path.open("ab") as stream:
            stream.write(torn)
    record.add(Answer(6.0, "Down", "重启"))
    assert record.read() == ([notice], [Answer(6.0, "Down", "重启")])


def test_a_body_of_another_version_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="version 4"):
        notices_of({"version": "3", "alerts": []}, 0.0)


def episode(alert: str, began_s: float, ended_s: float | None, **labels: str) -> Episode:
    return Episode(alert, TIERS.get(alert, ""), frozenset(labels.items()), began_s, ended_s)


def judged(episodes: list[Episode], answers: list[Answer] | None = None) -> dict[str, Verdict]:
    found = review(episodes, answers or [], TIERS, NOW_S - 30 * DAY_S, NOW_S)
    return {one.alert: one for one in found}


def test_what_nobody_acted_on_is_named() -> None:
    at_s = NOW_S - DAY_S
    told = judged([episode("Slow", at_s, at_s + 60), episode("Noted", at_s, at_s + 60)])
    assert (told["Slow"].num_fired, told["Slow"].num_unanswered) == (1, 1)
    assert "nobody acted" in told["Slow"].advice
    assert told["Noted"].advice == ""  # it is there to be recorded
    assert told["Quiet"].num_fired == 0
    for answered_s, num in ((at_s + 30, 0), (at_s + DAY_S, 0), (at_s - 1, 1), (NOW_S + 99, 1)):
        told = judged([episode("Slow", at_s, at_s + 60)], [Answer(answered_s, "Slow", "")])
        assert told["Slow"].num_unanswered == num
    other = judged([episode("Slow", at_s, at_s + 60)], [Answer(at_s, "Down", "")])
    assert other["Slow"].num_unanswered == 1


def test_what_flaps_is_named() -> None:
    def times(gap_s: float, **labels: str) -> list[Episode]:
        starts = [NOW_S - DAY_S + (60 + gap_s) * number for number in range(4)]
        return [episode("Slow", at, at + 60, **labels) for at in starts]

    assert judged(times(600))["Slow"].num_flapping == 3
    assert "flaps" in judged(times(600))["Slow"].advice
    assert judged(times(7200))["Slow"].num_flapping == 0
    apart = [one for number in range(4) for one in times(600, instance=str(number))[:1]]
    assert judged(apart)["Slow"].num_flapping == 0, "four machines, once each"


def test_days_that_are_not_looked_at_do_not_count_and_what_fires_now_does() -> None:
    old = NOW_S - 40 * DAY_S
    assert judged([episode("Down", old, old + 60)])["Down"].num_fired == 0
    told = judged([episode("Down", old, None)])["Down"]
    assert (told.num_fired, told.fires_now, told.total_s) == (1, True, 40 * DAY_S)
    assert next(iter(judged([]))) == "Down"  # the most urgent tier first


def test_a_gap_in_prometheus_series_is_an_end() -> None:
    labels = {"__name__": "ALERTS", "alertstate": "firing", "alertname": "Down", "severity": "P0"}
    values = [[at, "1"] for at in (0, 15, 30, 90, 105)]
    found = episodes_of_series([{"metric": labels, "values": values}], 15, 110)
    assert [(one.began_s, one.ended_s) for one in found] == [(0, 30), (90, None)]
    assert episodes_of_series([{"metric": labels, "values": values}], 15, 200)[1].ended_s == 105


def test_what_is_no_prometheus_is_said() -> None:
    with pytest.raises(InvalidRequest):
        fired("file:///etc/passwd", 0, 1)
    with pytest.raises(EngineUnavailable):
        fired("http://127.0.0.1:1", 0, 1)


def test_commands_of_the_record(tmp_path: Path) -> None:
    import time

    path = tmp_path / "alerts.jsonl"
    began_s = time.time() - 100
    name = "FirsthandQueueSlow"
    AlertRecord(path).add(Notice(began_s, "message", name, "P1", {}, "a", began_s, None, ""))
    found = {
        one["alert"]: one for one in called("alerts", "review", "--record", str(path))["alerts"]
    }
    assert (found[name]["num_fired"], found[name]["num_unanswered"]) == (1, 1)
    call("alerts", "answer", name, "added a machine", "--record", str(path))
    shown = call("alerts", "review", "--record", str(path)).stdout
    assert "it fires now" in shown
    assert "never fired in 30 days: " in shown
    assert "is none of" in call("alerts", "answer", "x", "y", "--record", str(path), code=2).stderr
