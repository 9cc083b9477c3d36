"""Refused records: looked at, mended, sent again exactly once; from answers back to records."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from firsthand.data.ledger import read_ledger
from firsthand.data.open_lineage import events
from firsthand.data.quarantine import fix, replay, shown
from firsthand.data.running import How, run_job
from firsthand.data.trace import trace, walked
from firsthand.errors import InvalidRequest, SourceRefused
from tests.data.jobs import Answers, ask, job_in, lines, outputs, prompt_of, with_engine


def upper(body: dict[str, Any], tries: int) -> tuple[int, str]:
    return 200, prompt_of(body).upper()


def test_a_mended_record_is_sent_once(tmp_path: Path) -> None:
    job = job_in(tmp_path, lines(ask(1), {"request_id": "r2"}, ask(3)) + b"{bad\n", **with_engine())
    run_job(job, lambda: Answers(upper), How())
    with closing(read_ledger(job.ledger, writes=True)) as ledger:
        first, second = shown(ledger.all_held())
        assert (first["record"], first["stage"], first["reason"]) == (
            2,
            "contract",
            "missing_field",
        )
        assert (second["stage"], second["raw"], second["offset"]) == ("read", "{bad\n", 99)
        with pytest.raises(InvalidRequest, match="bad_json"):
            fix(ledger, 1, b"{")
        with pytest.raises(SourceRefused, match="no such record"):
            fix(ledger, 10**20, b"{}")
        fix(ledger, 1, json.dumps(ask(2)).encode())
        fix(ledger, 2, json.dumps(ask(3, "double")).encode())
    now, books = replay(job, lambda: Answers(upper), None)
    assert (now.accepted, now.quarantined, now.duplicates) == (1, 0, 1)
    assert (books.read, books.accepted, books.quarantined, books.duplicates) == (4, 3, 0, 1)
    assert not books.reasons
    assert [one["answer"] for one in outputs(tmp_path)] == ["TEXT 1", "TEXT 3", "TEXT 2"]
    with closing(read_ledger(job.ledger)) as ledger:
        mended, *_ = trace(job, ledger, "r2")
    assert mended["input"]["now"] == "mended"
    assert mended["input"]["content"] == '{"request_id": "r2"}'
    assert json.loads(mended["input"]["mended"]) == ask(2)
    before = (tmp_path / "out.jsonl").read_bytes()
    now, _ = replay(job, lambda: Answers(upper), None)
    assert now.read == 0 and (tmp_path / "out.jsonl").read_bytes() == before
    with pytest.raises(SourceRefused, match="not held"):
        replay(job, lambda: Answers(upper), [1])
    assert run_job(job, lambda: Answers(upper), How(resume=True)).num_now == 0


def test_a_record_that_is_refused_again_stays_and_says_why(tmp_path: Path) -> None:
    job = job_in(tmp_path, lines({"request_id": "1"}))
    run_job(job, None, How())
    with closing(read_ledger(job.ledger, writes=True)) as ledger:
        fix(ledger, 1, b'{"request_id": "1", "text": " "}')
        with pytest.raises(SourceRefused, match="there is no such record"):
            ledger.held(10**20)
    now, books = replay(job, None, None)
    assert now.quarantined == 1 and dict(books.reasons) == {"blank": 1}


def test_rows_of_a_table_as_they_were_under_another_contract(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    text = (
        "from firsthand.data import Contract\n"
        "class Row(Contract):\n"
        "    key = 'name'\n"
        "    name: str\n"
        "    size: int\n"
    )
    own.write_text(text)
    (tmp_path / "in.csv").write_bytes('name;size\n水;1\n"a;b";0.5\nc;2\n'.encode("gbk"))
    table: dict[str, Any] = {
        "source": {"path": "in.csv", "encoding": "gbk"},
        "contract": "own.py:Row",
    }
    run_job(job_in(tmp_path, **table), None, How())
    own.write_text(text.replace("size: int", "size: float"))
    now, books = replay(job_in(tmp_path, **table), None, [1])
    assert now.accepted == 1 and books.quarantined == 0
    assert [(one["name"], one["size"]) for one in outputs(tmp_path)] == [
        ("水", 1),
        ("c", 2),
        ("a;b", 0.5),
    ]


def test_a_trace_walks_both_ways_and_sees_a_changed_byte(tmp_path: Path) -> None:
    records = lines(*map(ask, range(20)), {"request_id": "r99"})
    job = job_in(tmp_path, records, sample=3, **with_engine())
    run_job(job, lambda: Answers(upper), How())
    answer = outputs(tmp_path)[7]
    with closing(read_ledger(job.ledger)) as ledger:
        for name in ("r7", answer["firsthand"]["id"], answer["firsthand"]["input_sha256"][:12]):
            (found,) = trace(job, ledger, name)
            assert found["input"]["record"] == 8 and found["key"] == "r7"
            assert json.loads(found["input"]["content"]) == ask(7)
            assert json.loads(found["output"]["content"]) == answer
            assert found["input"]["now"] == found["output"]["now"] == "same"
            assert found["model"]["model_sha256"] == "ab" * 32
        (held,) = ledger.all_held()
        (found,) = trace(job, ledger, held.id.hex())
        assert found["quarantine"]["reason"] == "missing_field"
        samples = [walked(job, ledger, one) for one in ledger.samples()]
        assert 0 < len(samples) < 20 and json.loads(samples[0]["sample"])["max_length"] == 512
        (tmp_path / "in.jsonl").write_bytes(records.replace(b"text 7", b"text 8"))
        (found,) = trace(job, ledger, "r7")
        assert (found["input"]["now"], found["output"]["now"]) == ("changed", "same")


def test_a_run_as_events_of_openlineage(tmp_path: Path) -> None:
    job = job_in(tmp_path, lines(ask(1), {"text": "x"}), **with_engine())
    run_job(job, lambda: Answers(upper), How())
    with closing(read_ledger(job.ledger)) as ledger:
        start, end = events(job, ledger)
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert start["eventTime"] <= end["eventTime"]
    assert end["inputs"][0]["name"] == "in.jsonl"
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1
    facets = end["run"]["facets"]
    assert facets["firsthand_books"]["quarantined"] == 1
    assert facets["firsthand_model"]["model"] == "rule"
    assert all({"_producer", "_schemaURL"} <= set(facet) for facet in facets.values())
