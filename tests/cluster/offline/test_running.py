"""A job in parts gives what one process gives: the same lines, ledger, quarantine and books.

Owns: the tests of `cluster/offline/` that need no Ray.
May not know: Ray.
Read next: `on_ray.py`, for what needs Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firsthand.cluster.offline import joining, running
from firsthand.cluster.offline.joining import newest
from firsthand.cluster.offline.plan import make_plan, open_part, plan_of
from firsthand.cluster.offline.running import HowOffline, run_in_parts
from firsthand.data.ledger import read_ledger
from firsthand.data.opening import open_source
from firsthand.data.record import START
from firsthand.data.running import How, run_job
from firsthand.errors import EngineUnavailable, InvalidRequest, SourceRefused
from tests.cluster.offline.comparing import (
    alone,
    differs,
    in_parts,
    job_with,
    pool,
)
from tests.data.jobs import Answers, ask, lines, prompt_of

CLEAN = {"transform": [{"use": "clean", "fields": ["text"]}]}
SAME_TEXT = {"transform": [{"use": "deduplicate", "fields": ["text"]}], "sample": 3}
ENGINE = {"engine": {"url": "http://x", "patience_s": 0.0}}


def records(num: int = 40) -> list[dict[str, Any]]:
    """Some without a text, some with a key or a text that was there."""
    found = []
    for number in range(num):
        record = ask(number if number % 7 else number // 2, f"text {number % 30}")
        found.append(record if number % 11 else {**record, "text": ""})
    return found


def answers() -> Answers:
    """Refuses some for ever, and gives some no answer."""

    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        text = prompt_of(body)
        if "3" in text:
            return 400, "no three"
        return (500, "breaks") if text.endswith("17") else (200, text.upper())

    return Answers(rule)


def jsonl() -> bytes:
    return lines(*records()) + b"\n\nno json\n" + lines(*records(5))


def csv(newline: str = "\n") -> str:
    rows = ["request_id,text", ""]
    for number in range(40):
        text = f'"two{newline}lines, ""{number}"""' if number % 3 == 0 else f"text {number}"
        rows.append(f"r{number % 30},{text}")
        if number % 13 == 0:
            rows += ["", f'"open {number},x', "a,b,c"]
    return newline.join(rows) + newline


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(records()), path, row_group_size=7)


@pytest.fixture
def folder(fast_folder: Path) -> Path:
    (fast_folder / "in.jsonl").write_bytes(jsonl())
    return fast_folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.jsonl", jsonl()),
        ("in.jsonl", b"\xef\xbb\xbf" + jsonl().replace(b"\n", b"\r\n")),
        ("in.jsonl", jsonl().decode().replace("text", "记录和回答").encode("gb18030") + b"\xff\n"),
        ("in.jsonl", jsonl().decode().replace("text", "\u0a0a").encode("utf-16")),
        ("in.csv", csv().encode()),
        ("in.csv", csv("\r\n").encode("utf-16")),
        ("in.csv", b"request_id,text\n"),
        ("in.parquet", b""),
    ],
    ids=["utf-8", "mark", "gb18030", "utf-16", "csv", "csv-utf-16", "empty", "parquet"],
)
@pytest.mark.parametrize("num_parts", [4, 17])
def test_s_79_parts_give_what_one_process_gives(
    fast_folder: Path, name: str, content: bytes, num_parts: int
) -> None:
    """G26: and the books balance, part by part and in all."""
    (fast_folder / name).write_bytes(content)
    if not content:
        write_parquet(fast_folder / name)
    table = {"source": {"path": name}, **SAME_TEXT}
    one = alone(fast_folder, table)
    other, outcome = in_parts(fast_folder, table, num_parts)
    assert differs(one, other) == ""
    assert outcome.ended and outcome.num_now == outcome.books.read
    assert not running.parts_folder(other).exists()


def test_positions_in_a_part_are_those_of_the_whole(fast_folder: Path) -> None:
    (fast_folder / "in.csv").write_text(csv())
    job = job_with(fast_folder, "out.jsonl", {"source": {"path": "in.csv"}})
    plan = plan_of(make_plan(job, START, 2, 8).text())
    assert len(plan.parts) > 4
    found: list[Any] = []
    for part in plan.parts:
        num_before = len(found)
        with closing(open_part(job, plan, part, START)) as source:
            found += [(one.position.record + num_before, one.position[1:], one) for one in source]
    with closing(open_source(job, START)) as source:
        wanted = [(one.position.record, one.position[1:], one) for one in source]
    assert [one[:2] for one in found] == [one[:2] for one in wanted]
    assert [one[2].raw for one in found] == [one[2].raw for one in wanted]


def test_an_engine_and_keys_that_other_parts_have(folder: Path) -> None:
    table = {**ENGINE, **SAME_TEXT}
    one = alone(folder, table, answers)
    other, outcome = in_parts(folder, table, 7, answers)
    assert differs(one, other) == ""
    assert outcome.books.duplicates and outcome.books.quarantined


def test_what_was_answered_is_not_asked_again(fast_folder: Path) -> None:
    """Of two parts, which are run again because others before them have keys of theirs."""
    found = [ask(1), ask(2), ask(1, "text 3"), ask(4, "text 4"), ask(5, "text 4")]
    (fast_folder / "in.jsonl").write_bytes(lines(*found))
    table = {**ENGINE, **SAME_TEXT}
    asked: list[str] = []

    def upper(body: dict[str, Any], tries: int) -> tuple[int, str]:
        asked.append(prompt_of(body))
        return 200, prompt_of(body).upper()

    _, outcome = in_parts(fast_folder, table, 3, lambda: Answers(upper))
    assert sorted(asked) == ["text 1", "text 2", "text 3", "text 4", "text 4"]
    assert (outcome.books.accepted, outcome.books.duplicates) == (3, 2)


def test_what_is_double_only_of_a_duplicate_is_none(fast_folder: Path) -> None:
    """The third has the key of the first, and so its text is free for the fourth."""
    found = [ask(1, "one"), ask(2, "two"), ask(1, "same"), ask(3, "same")]
    (fast_folder / "in.jsonl").write_bytes(lines(*found))
    table = {**ENGINE, **SAME_TEXT}
    one = alone(fast_folder, table, answers)
    other, outcome = in_parts(fast_folder, table, 2, answers)
    assert differs(one, other) == ""
    assert (outcome.books.accepted, outcome.books.duplicates) == (3, 1)


rows = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from(["a", "b", "3", "17", ""])),
    min_size=1,
    max_size=14,
)


@settings(
    deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=rows, num_parts=st.integers(2, 6), engine=st.booleans())
def test_any_keys_in_any_parts(
    fast_folder: Path, rows: list[tuple[int, str]], num_parts: int, engine: bool
) -> None:
    folder = fast_folder / str(len(list(fast_folder.iterdir())))
    folder.mkdir()
    records = [{"request_id": f"r{key}", "text": text} for key, text in rows]
    (folder / "in.jsonl").write_bytes(lines(*records))
    opens = answers if engine else None
    table = {**(ENGINE if engine else {}), **SAME_TEXT}
    one = alone(folder, table, opens)
    other, _ = in_parts(folder, table, num_parts, opens)
    assert differs(one, other) == ""


@pytest.mark.parametrize("kind", ["json", "sql", "queue"])
def test_what_has_no_parts_is_refused_by_name(fast_folder: Path, kind: str) -> None:
    (fast_folder / "in.json").write_text("[]")
    source: dict[str, Any] = {"path": "in.json"}
    if kind == "sql":
        source = {"kind": "sql", "url": "sqlite:in.db", "query": "SELECT 1", "key": "id"}
    if kind == "queue":
        source = {"kind": "queue", "url": "sqlite:in.db", "name": "asks"}
    with pytest.raises(InvalidRequest, match=rf"source.kind: {kind} has no parts"):
        in_parts(fast_folder, {"source": source}, 2)
    assert sorted(path.name for path in fast_folder.iterdir()) == ["in.json"]


def test_one_part_that_fails_holds_no_other_up_and_the_run_goes_on(folder: Path) -> None:
    one = alone(folder, {**ENGINE, **SAME_TEXT}, answers)
    count = iter(range(1000))

    def busy(body: dict[str, Any], tries: int) -> tuple[int, str]:
        return 503, "not now"

    def opens() -> Answers:
        return Answers(busy) if next(count) == 1 else answers()

    table = {**ENGINE, **SAME_TEXT}
    with pytest.raises(EngineUnavailable, match="not now"):
        in_parts(folder, table, 6, opens)
    job = job_with(folder, "parts.jsonl", table)
    there = [path.name for path in running.parts_folder(job).iterdir() if "." not in path.name]
    assert len(there) == 5
    with pytest.raises(SourceRefused, match="--resume goes on"):
        in_parts(folder, table, 6, opens)
    other, outcome = in_parts(folder, table, 3, opens, resume=True)
    assert differs(one, other) == "" and outcome.ended


class Died(BaseException):
    """As a process ends that is killed: nothing is put in order."""


@pytest.mark.parametrize("way", ["parts", "alone"])
@pytest.mark.parametrize("at", [0, 3])
def test_a_run_that_ends_while_parts_are_joined(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, at: int
) -> None:
    """It is gone on with in parts, or by one process: the ledger is at every moment that of one."""
    one = alone(folder, SAME_TEXT)
    job = job_with(folder, "parts.jsonl", SAME_TEXT)

    def dies(job: Any, plan: Any, folder: Any, number: int, *rest: Any) -> None:
        if number == at:
            with (job.folder / "parts.jsonl").open("ab") as out:
                out.write(b"torn")
            raise Died
        joining.join(job, plan, folder, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(running, "join", dies)
        with pytest.raises(Died):
            in_parts(folder, SAME_TEXT, 6)
    if way == "parts":
        in_parts(folder, SAME_TEXT, 6, resume=True)
    else:
        run_job(job, None, How(resume=True))
    assert differs(one, job) == ""


def test_one_process_begins_and_parts_go_on(folder: Path) -> None:
    one = alone(folder, SAME_TEXT)
    job = job_with(folder, "parts.jsonl", SAME_TEXT)
    run_job(job, None, How(limit=13))
    in_parts(folder, SAME_TEXT, 6, resume=True)
    assert differs(one, job) == ""


def test_d_10_a_source_that_changes_between_two_parts(folder: Path) -> None:
    def changes(setting: Any, tasks: Any) -> Iterator[Any]:
        for count, done in enumerate(pool()(setting, tasks)):
            if count == 2:
                with (folder / "in.jsonl").open("ab") as stream:
                    stream.write(lines(ask(900)))
            yield done

    job = job_with(folder, "parts.jsonl", {})
    with pytest.raises(SourceRefused, match="began with version"):
        run_in_parts(job, HowOffline(2, 5), changes)


def test_a_part_that_was_changed_is_not_joined(folder: Path) -> None:
    def spoils(setting: Any, tasks: Any) -> Iterator[Any]:
        yield from pool()(setting, tasks)
        place = setting.folder / str(newest(setting.folder, 1)) / "output.jsonl"
        place.write_bytes(place.read_bytes().replace(b"text", b"tent"))

    job = job_with(folder, "parts.jsonl", {})
    with pytest.raises(SourceRefused, match="is not what was written"):
        run_in_parts(job, HowOffline(2, 5), spoils)


def test_unfinished_parts_may_be_elsewhere(folder: Path) -> None:
    one = alone(folder, SAME_TEXT)
    scratch = folder / "scratch"
    job = job_with(folder, "parts.jsonl", SAME_TEXT)
    run_in_parts(job, HowOffline(2, 4, scratch), pool())
    assert differs(one, job) == "" and not list(scratch.iterdir())


def test_a_row_that_the_sink_has_no_column_for_is_held_with_its_bytes(fast_folder: Path) -> None:
    odd = b'{"request_id":  "r9", "text": "odd"}'
    (fast_folder / "in.jsonl").write_bytes(lines(*(ask(n) for n in range(8))) + odd + b"\n")
    (fast_folder / "mine.py").write_text(
        "def more(values):\n    odd = values['text'] == 'odd'\n"
        "    return {**values, 'more': 1} if odd else values\n"
    )
    table: dict[str, Any] = {
        "sink": {"path": "out.parquet"},
        "transform": [{"use": "mine.py:more"}],
    }
    table |= {"checkpoint_records": 4}
    job, outcome = in_parts(fast_folder, table, 3)
    assert pq.read_table(fast_folder / "out.parquet").num_rows == outcome.books.accepted == 8
    with closing(read_ledger(job.ledger)) as ledger:
        (held,) = ledger.all_held()
    assert (held.raw, held.stage, held.reason) == (odd, "sink", "unknown_field")
    assert (held.position.record, held.position.line) == (9, 9)
