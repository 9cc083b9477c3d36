"""Runs of jobs: order, books, what is refused and why, and how a run goes on."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from firsthand.data.ledger import read_ledger
from firsthand.data.running import How, Outcome, run_job, try_job
from firsthand.errors import (
    BooksUnbalanced,
    CapacityExceeded,
    EngineUnavailable,
    InvalidRequest,
    SourceRefused,
)
from tests.data.jobs import Answers, ask, job_in, lines, outputs, prompt_of, with_engine


def upper(body: dict[str, Any], tries: int) -> tuple[int, str]:
    return 200, prompt_of(body).upper()


def books(outcome: Outcome) -> tuple[int, int, int, int]:
    found = outcome.books
    return found.read, found.accepted, found.quarantined, found.duplicates


def test_records_without_an_engine(tmp_path: Path) -> None:
    records = lines(ask(1), {"request_id": "2"}, ask(1, "again"), ask(3)) + b"{\n"
    outcome = run_job(job_in(tmp_path, records), None, How())
    assert books(outcome) == (5, 2, 2, 1) and outcome.ended
    assert outcome.doubles == [(3, "r1")]
    found = outputs(tmp_path)
    assert [one["request_id"] for one in found] == ["r1", "r3"]
    assert found[0]["text"] == "text 1" and found[0]["max_length"] == 512
    assert set(found[0]["firsthand"]) == {"id", "input_sha256", "contract", "contract_sha256"}


def test_answers_stand_in_the_order_of_the_records_and_the_batch_stays_full(
    tmp_path: Path,
) -> None:
    slow = random.Random(1)

    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        time.sleep(slow.random() * 0.004)
        return upper(body, tries)

    engine = Answers(rule, width=8)
    job = job_in(tmp_path, lines(*map(ask, range(200))), **with_engine())
    outcome = run_job(job, lambda: engine, How())
    assert books(outcome) == (200, 200, 0, 0)
    found = outputs(tmp_path)
    assert [one["answer"] for one in found] == [f"TEXT {n}" for n in range(200)]
    assert engine.most_at_once == 8
    assert found[0]["firsthand"]["model"] == "rule"
    assert found[0]["firsthand"]["model_sha256"] == "ab" * 32
    assert found[0]["firsthand"]["engine"].startswith("firsthand ")


def test_d_5_poison_leaves_after_three_tries_and_holds_nobody_up(tmp_path: Path) -> None:
    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        text = prompt_of(body)
        if text == "text 3":
            return 500, "broken"
        if text == "text 4":
            return 400, "never"
        if text == "text 5" and tries < 3:
            return 500, "not yet"
        return upper(body, tries)

    engine = Answers(rule)
    job = job_in(tmp_path, lines(*map(ask, range(20))), **with_engine())
    outcome = run_job(job, lambda: engine, How())
    assert books(outcome) == (20, 18, 2, 0)
    assert dict(outcome.books.reasons) == {"poison": 1, "refused": 1}
    assert sorted(engine.tries.values())[-2:] == [3, 3]
    ledger = read_ledger(job.ledger)
    held = list(ledger.all_held())
    ledger.close()
    assert [(one.position.record, one.stage, one.reason) for one in held] == [
        (4, "engine", "poison"),
        (5, "engine", "refused"),
    ]
    assert held[0].raw == json.dumps(ask(3)).encode()


OWN = """
import datetime, math
def given(values):
    deep, own = [], []
    for _ in range(100_000):
        deep = [deep]
    own.append(own)
    found = ["\\ud800", deep, 10**5000, own, math.nan, object(), SystemExit, GeneratorExit,
             datetime.date(2026, 1, 2)][int(values["request_id"][1:])]
    if isinstance(found, type):
        raise found
    return {**values, "x": found}
"""


def test_what_a_transform_gives_is_judged(tmp_path: Path) -> None:
    """Each that has no form in JSON is refused by its field, and the others go on."""
    (tmp_path / "own.py").write_text(OWN)
    table = {"transform": [{"use": "own.py:given"}]}
    outcome = run_job(job_in(tmp_path, lines(*map(ask, range(9))), **table), None, How())
    assert books(outcome) == (9, 1, 8, 0)
    assert dict(outcome.books.reasons) == {"invalid": 6, "failed": 2}
    assert [one["x"] for one in outputs(tmp_path)] == ["2026-01-02"]
    ledger = read_ledger(tmp_path / "out.jsonl.ledger")
    held = list(ledger.all_held())
    ledger.close()
    assert {one.stage for one in held} == {"own.py:given"}
    assert [one.field for one in held] == ["x"] * 6 + [None] * 2


def test_a_reply_that_has_no_form_is_tried_again_and_then_poison(tmp_path: Path) -> None:
    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        return 200, "\ud800" if prompt_of(body) == "text 1" else "good"

    job = job_in(tmp_path, lines(*map(ask, range(3))), **with_engine())
    outcome = run_job(job, lambda: Answers(rule), How())
    assert books(outcome) == (3, 2, 1, 0) and dict(outcome.books.reasons) == {"poison": 1}


def test_a_duplicate_waits_for_what_becomes_of_the_first(tmp_path: Path) -> None:
    """A refused record takes no key, also while both are in the window."""

    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        if prompt_of(body) == "bad":
            time.sleep(0.02)
            return 400, "no"
        return upper(body, tries)

    records = lines(ask(1, "bad"), ask(1, "good"), ask(1, "late"), ask(2))
    outcome = run_job(job_in(tmp_path, records, **with_engine()), lambda: Answers(rule), How())
    assert books(outcome) == (4, 2, 1, 1)
    assert [one["answer"] for one in outputs(tmp_path)] == ["GOOD", "TEXT 2"]


def test_an_engine_that_takes_nothing_ends_the_run_and_another_goes_on(tmp_path: Path) -> None:
    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        return (503, "full") if prompt_of(body) == "text 30" else upper(body, tries)

    job = job_in(tmp_path, lines(*map(ask, range(50))), **with_engine())
    with pytest.raises(EngineUnavailable, match="full"):
        run_job(job, lambda: Answers(rule), How())
    assert len(outputs(tmp_path)) <= 30
    with pytest.raises(SourceRefused, match="--resume"):
        run_job(job, lambda: Answers(upper), How())
    outcome = run_job(job, lambda: Answers(upper), How(resume=True))
    assert books(outcome) == (50, 50, 0, 0)
    assert [one["answer"] for one in outputs(tmp_path)] == [f"TEXT {n}" for n in range(50)]


def test_a_field_that_is_to_be_kept_and_is_not_there(tmp_path: Path) -> None:
    """Before anybody is asked."""
    sink = {"path": "out.jsonl", "keep": ["request_id", "nosuch"]}
    job = job_in(tmp_path, lines(ask(1)), sink=sink, **with_engine())
    engine = Answers(upper)
    outcome = run_job(job, lambda: engine, How())
    assert dict(outcome.books.reasons) == {"missing_field": 1} and engine.tries == {}


def test_a_limit_and_a_run_that_is_over(tmp_path: Path) -> None:
    job = job_in(tmp_path, lines(*map(ask, range(10))))
    outcome = run_job(job, None, How(limit=4))
    assert books(outcome) == (4, 4, 0, 0) and not outcome.ended
    outcome = run_job(job, None, How(resume=True))
    assert books(outcome) == (10, 10, 0, 0) and outcome.ended and outcome.num_now == 6
    before = (tmp_path / "out.jsonl").read_bytes()
    outcome = run_job(job, None, How(resume=True))
    assert outcome.num_now == 0 and (tmp_path / "out.jsonl").read_bytes() == before


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    job = job_in(tmp_path, lines(ask(1), ask(1), {"text": "x"}))
    *_, found = try_job(job, None)
    assert (found.read, found.accepted) == (3, 1)  # type: ignore[union-attr]
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_d_10_a_run_goes_on_only_with_what_it_began_with(tmp_path: Path) -> None:
    job = job_in(tmp_path, lines(*map(ask, range(10))))
    run_job(job, None, How(limit=4))
    changed = job_in(tmp_path, None, transform=[{"use": "clean", "fields": ["text"]}])
    with pytest.raises(SourceRefused, match="transforms"):
        run_job(changed, None, How(resume=True))
    with (tmp_path / "in.jsonl").open("ab") as stream:
        stream.write(lines(ask(11)))
    with pytest.raises(SourceRefused, match="version"):
        run_job(job, None, How(resume=True))


def test_d_10_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        if prompt_of(body) == "text 5":
            with (tmp_path / "in.jsonl").open("ab") as stream:
                stream.write(b"\n")
        return upper(body, tries)

    job = job_in(tmp_path, lines(*map(ask, range(10))), **with_engine())
    with pytest.raises(SourceRefused, match="changed while"):
        run_job(job, lambda: Answers(rule), How())
    assert outputs(tmp_path) == []


def test_d_6_books_that_do_not_balance_are_a_fault(tmp_path: Path) -> None:
    """Whoever takes a row out of the ledger is found out."""
    job = job_in(tmp_path, lines(*map(ask, range(10))))
    run_job(job, None, How(limit=5))
    with sqlite3.connect(job.ledger) as ledger:
        ledger.execute("DELETE FROM outputs WHERE record = 2")
    with pytest.raises(BooksUnbalanced, match="9 outputs"):
        run_job(job, None, How(resume=True))


def test_two_runs_at_once(tmp_path: Path) -> None:
    job = job_in(tmp_path, lines(ask(1)), **with_engine())

    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        with pytest.raises(CapacityExceeded, match="another run"):
            run_job(job, None, How(resume=True))
        return upper(body, tries)

    assert books(run_job(job, lambda: Answers(rule), How())) == (1, 1, 0, 0)


def test_an_output_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_bytes(b"mine\n")
    with pytest.raises(SourceRefused, match="no ledger"):
        run_job(job_in(tmp_path, lines(ask(1))), None, How())
    assert (tmp_path / "out.jsonl").read_bytes() == b"mine\n"


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ({"source": {"path": "a.csv", "url": "x"}}, "source"),
        ({"sorce": {}}, "sorce"),
        ({"sink": {"path": "o.csv", "kind": "csv"}}, "sink"),
        ({"sink": {"path": "o.db", "kind": "sql"}}, "sink"),
        ({"sink": {"path": "o.csv"}}, "sink"),
        ({"sink": {"url": "sqlite:o.db"}}, "sink"),
        ({"source": {"path": "q.db", "kind": "queue", "name": "q"}}, "source"),
        ({"engine": {"model": "a", "url": "b"}}, "engine"),
        ({"source": {"path": "a.csv", "delimeter": ","}}, "source.delimeter"),
        ({"transform": [{"use": "clean", "field": "x"}]}, "transform clean"),
        ({"transform": [{"use": "shout"}]}, "transform"),
        ({"source": {"kind": "sql", "url": "sqlite:x"}}, "source"),
        ({"checkpoint_records": 0}, "checkpoint_records"),
    ],
)
def test_a_job_is_told_by_name_what_is_wrong(
    tmp_path: Path, table: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        job_in(tmp_path, None, **table)
    assert refused.value.field == field


def test_a_source_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """And so, with its header mended, a run begins."""
    (tmp_path / "in.csv").write_text("id,text\n1,a\n")
    job = job_in(tmp_path, source={"path": "in.csv"})
    with pytest.raises(SourceRefused, match="has no column 'request_id'"):
        run_job(job, None, How())
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
    (tmp_path / "in.csv").write_text("request_id,text\n1,a\n")
    assert run_job(job, None, How()).ended
