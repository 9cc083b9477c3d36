"""The alerts of the last day, as the page shows them.

Owns: proof of `firing.py`. Read next: `test_review.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firsthand.observe.firing import MAX_ALERTS, MAX_READ_BYTES, RecentAlerts
from firsthand.observe.received import AlertRecord, Notice
from firsthand.observe.review import DAY_S

NOW_S = 10 * DAY_S
NOTICE = Notice(
    NOW_S - 60, "record", "FirsthandDown", "P0", {}, "a", NOW_S - 90, None, "it is down"
)


def test_what_fires_comes_first_and_what_is_old_not_at_all(tmp_path: Path) -> None:
    record = AlertRecord(tmp_path / "alerts.jsonl")
    recent = RecentAlerts(record)
    assert recent.since_yesterday(NOW_S) == []
    record.add(replace(NOTICE, at_s=NOW_S - 2 * DAY_S, fingerprint="old"))
    record.add(replace(NOTICE, alert="Ended", fingerprint="b", began_s=NOW_S - 80))
    record.add(NOTICE)
    assert [one["ended_s"] for one in recent.since_yesterday(NOW_S)] == [None, None]
    record.add(
        replace(NOTICE, alert="Ended", fingerprint="b", began_s=NOW_S - 80, ended_s=NOW_S - 5)
    )
    first, second = recent.since_yesterday(NOW_S)
    assert (first["alert"], first["ended_s"]) == ("FirsthandDown", None)
    assert (second["alert"], second["ended_s"]) == ("Ended", NOW_S - 5)
    assert second["entry"] is None  # of an alert that is none of ours nothing is known


def test_of_a_long_record_only_the_end_is_read(tmp_path: Path) -> None:
    record = AlertRecord(tmp_path / "alerts.jsonl")
    record.add(replace(NOTICE, fingerprint="far"))
    with record.path.open("ab") as stream:
        stream.write(b"x" * MAX_READ_BYTES + b"\n")
    for number in range(MAX_ALERTS + 5):
        record.add(replace(NOTICE, fingerprint=str(number), began_s=NOW_S - number))
    found = RecentAlerts(record).since_yesterday(NOW_S)
    assert len(found) == MAX_ALERTS
    assert found[0]["began_s"] == NOW_S
