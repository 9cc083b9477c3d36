"""Queues and databases, the real ones: the same outputs as of a file, and nothing lost or double.

Owns: MQDB-1 to MQDB-5, D-4, S78. May not know: how a server is started. Read next: `services.py`.
Kafka is tested against the mock cluster of librdkafka, its client library: no real broker.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict

from firsthand.data.contract import Contract, NotBlank
from firsthand.data.job import Job, job_of
from firsthand.data.ledger import Ledger, read_ledger
from firsthand.data.opening import open_source
from firsthand.data.queues.opening import open_queue
from firsthand.data.record import START
from firsthand.data.running import How, Outcome, run_job
from firsthand.data.sources.messages import MessageSource
from firsthand.errors import EngineUnavailable, SourceRefused
from firsthand.processes import resident_bytes
from tests.data import services
from tests.data.jobs import Answers, ask, job_in, lines, outputs, prompt_of

pytestmark = pytest.mark.process
KINDS = [
    "queue",
    "redis",
    "nats",
    pytest.param("rabbitmq", marks=pytest.mark.slow),
    pytest.param("kafka", marks=pytest.mark.slow),
]
KEEPS_ORDER = ("queue", "redis", "rabbitmq", "kafka")  # also of what comes again after a crash


class Row(Contract):
    key = "id"

    id: int
    text: NotBlank


class Anything(Contract):
    model_config = ConfigDict(extra="allow")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of a server of a kind, started when it is asked for."""
    with services.Servers(tmp_path_factory) as servers:
        yield servers.url


def queue_job(folder: Path, kind: str, url: str, **more: Any) -> Job:
    """Over a queue whose name no other test has."""
    source = {"kind": kind, "url": url, "name": folder.name, "idle_s": 0.3}
    source["group"] = folder.name  # which no other test has either
    table = {"source": source, "sink": {"path": "out.jsonl"}, "checkpoint_s": 0.1, **more}
    return job_of(table, folder)


def put(job: Job, *bodies: bytes) -> None:
    """Of Kafka into one partition, in which alone there is an order."""
    if job.file.source.kind == "kafka":
        services.produce(str(job.file.source.url), str(job.file.source.name), bodies)
        return
    with closing(open_queue(job.file.source, job.folder)) as queue:
        queue.send([(f"m{number}", body) for number, body in enumerate(bodies)])


def lag(job: Job) -> int | None:
    with closing(open_queue(job.file.source, job.folder)) as queue:
        return queue.lag()


def books(outcome: Outcome) -> tuple[int, int, int, int]:
    found = outcome.books
    return found.read, found.accepted, found.quarantined, found.duplicates


def without_ids(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An id holds the name of the source."""
    for one in found:
        del one["firsthand"]["id"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_mqdb_1_2_4_a_queue_gives_what_a_file_gives(tmp_path: Path, urls: Any, kind: str) -> None:
    """Ten records, of which one is no JSON, one is refused, and one is there twice; with an
    engine. Then a second run: nothing is read again."""
    records = [json.dumps(ask(number)).encode() for number in range(8)]
    records.insert(4, b"{broken")
    records += [json.dumps(ask(2, "again")).encode(), b'{"request_id": "x"}']
    engine = {"engine": {"url": "http://x", "options": {"temperature": 0}}}

    def rule(body: dict[str, Any], tries: int) -> tuple[int, str]:
        return 200, prompt_of(body).upper()

    job = queue_job(tmp_path, kind, urls(kind), **engine)
    put(job, *records)
    found = run_job(job, lambda: Answers(rule), How())
    (tmp_path / "file").mkdir()
    same = job_in(tmp_path / "file", b"\n".join(records), **engine)
    assert books(found) == books(run_job(same, lambda: Answers(rule), How())) == (11, 8, 2, 1)
    assert without_ids(outputs(tmp_path)) == without_ids(outputs(tmp_path / "file"))
    assert lag(job) in (0, None)
    assert books(run_job(job, lambda: Answers(rule), How(resume=True))) == (11, 8, 2, 1)
    with closing(read_ledger(job.ledger)) as ledger:
        assert [one.reason for one in ledger.all_held()] == ["bad_json", "missing_field"]


SLOW_NATS = pytest.param("nats", marks=pytest.mark.slow)  # it redelivers after ten seconds


@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind != "nats"), SLOW_NATS])
def test_mqdb_3_d_4_a_kill_between_output_and_acknowledgement(
    tmp_path: Path, urls: Any, kind: str
) -> None:
    folder, url = tmp_path, urls(kind)
    job = queue_job(folder, kind, url, checkpoint_records=20, checkpoint_s=600.0)
    put(job, *(json.dumps(ask(number)).encode() for number in range(60)))
    process = os.fork()
    if process == 0:
        _die_at(MessageSource, "done", 2, job)
    assert os.waitpid(process, 0)[1] == 9 << 8
    before = (folder / "out.jsonl").read_bytes()
    assert before.count(b"\n") == 40
    outcome = run_job(job, None, How(resume=True))
    assert outcome.books.accepted == 60 and outcome.books.duplicates == 20
    assert (folder / "out.jsonl").read_bytes().startswith(before)
    found = [one["request_id"] for one in outputs(folder)]
    wanted = [f"r{number}" for number in range(60)]
    assert (found if kind in KEEPS_ORDER else sorted(found)) == (
        wanted if kind in KEEPS_ORDER else sorted(wanted)
    )
    assert lag(job) in (0, None)


def _die_at(owner: type, method: str, at: int, job: Job) -> None:
    """In a child: the process ends when the method is called for the so manieth time."""
    real, count = getattr(owner, method), [0]

    def dying(*arguments: Any) -> None:
        count[0] += 1
        if count[0] == at:
            os._exit(9)
        real(*arguments)

    setattr(owner, method, dying)
    run_job(job, None, How())
    os._exit(0)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_into_a_queue(tmp_path: Path, urls: Any, kind: str) -> None:
    name = tmp_path.name
    job = job_in(tmp_path, lines(*map(ask, range(5))), sink={
        "kind": kind, "url": urls(kind), "name": name,
    })  # fmt: skip
    assert books(run_job(job, None, How())) == (5, 5, 0, 0)
    back = queue_job(tmp_path, kind, urls(kind), contract=f"{__name__}:Anything")
    with closing(open_source(back, START)) as source:
        found = [one.fields for one in source]  # type: ignore[union-attr]
    assert sorted(one["request_id"] for one in found) == [f"r{number}" for number in range(5)]


def table_job(folder: Path, url: str, query: str, **more: Any) -> Job:
    sqlite3.connect(folder / "table.db").close()
    source = {"kind": "sql", "url": url, "query": query, "key": "id"}
    table = {"source": source, "sink": {"path": "out.jsonl"}, "contract": f"{__name__}:Row"}
    return job_of({**table, **more}, folder)


ROWS = (
    "SELECT 1 AS id, 'a' AS text UNION ALL SELECT 2, '' "
    "UNION ALL SELECT 7, 'c' UNION ALL SELECT 9, '50 % d'"
)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_rows_of_a_query(tmp_path: Path, urls: Any, kind: str) -> None:
    job = table_job(tmp_path, urls(kind), ROWS)
    assert books(run_job(job, None, How(limit=2))) == (2, 1, 1, 0)
    assert books(run_job(job, None, How(resume=True))) == (4, 3, 1, 0)
    assert [one["id"] for one in outputs(tmp_path)] == [1, 7, 9]
    (tmp_path / "double").mkdir()
    double = table_job(tmp_path / "double", urls(kind), ROWS + " UNION ALL SELECT 7, 'e'")
    with pytest.raises(SourceRefused, match="stands there twice"):
        run_job(double, None, How())
    (tmp_path / "wrong").mkdir()
    wrong = table_job(tmp_path / "wrong", urls(kind), "SELECT 1 AS id, 'a' AS txt")
    with pytest.raises(SourceRefused, match="'text'"):
        run_job(wrong, None, How())


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_keys_are_compared_by_their_bytes(tmp_path: Path, urls: Any, kind: str) -> None:
    """A database may hold two for equal, or order them as a language does."""
    rows = " UNION ALL ".join(f"SELECT '{key}' AS id, 'x' AS text" for key in "aAbBcCäZ")
    if kind == "sqlite":
        with sqlite3.connect(tmp_path / "table.db") as connection:
            connection.execute("CREATE TABLE t (id TEXT COLLATE NOCASE, text TEXT)")
            connection.execute(f"INSERT INTO t {rows}")
        rows = "SELECT * FROM t"
    job = table_job(tmp_path, urls(kind), rows, contract=f"{__name__}:Anything")
    for number in range(8):
        assert run_job(job, None, How(resume=number > 0, limit=1)).books.accepted == number + 1
    assert [one["id"] for one in outputs(tmp_path)] == sorted("aAbBcCäZ")


def test_mqdb_1_a_text_or_a_number_in_the_tables_queue(tmp_path: Path, urls: Any) -> None:
    """As anybody's SQL writes it: a text is read, whatever else is refused, the others go on."""
    job = queue_job(tmp_path, "queue", urls("queue"))
    bodies = [json.dumps(ask(2)), 7, 1.5, json.dumps(ask(3)).encode()]
    put(job, json.dumps(ask(1)).encode())
    with sqlite3.connect(tmp_path / str(job.file.source.url).partition(":")[2]) as connection:
        connection.executemany(
            "INSERT INTO messages (queue, name, body) VALUES (?, NULL, ?)",
            [(tmp_path.name, body) for body in bodies],
        )
    assert books(run_job(job, None, How())) == (5, 3, 2, 0)
    assert [one["request_id"] for one in outputs(tmp_path)] == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("sqlite", 10_000),
        ("postgres", 10_000),
        pytest.param("sqlite", 1_000_000, marks=pytest.mark.slow),
        pytest.param("postgres", 1_000_000, marks=pytest.mark.slow),
    ],
)
def test_mqdb_5_a_large_result_is_not_held(
    tmp_path: Path, urls: Any, kind: str, count: int
) -> None:
    series = f"generate_series(1, {count}) AS s(id)"
    text = "repeat('x', 1000)"
    if kind == "sqlite":
        numbers = f"SELECT 1 UNION ALL SELECT id + 1 FROM s LIMIT {count}"
        series = f"(WITH RECURSIVE s(id) AS ({numbers}) SELECT id FROM s)"
        text = "printf('%.1000c', 'x')"
    job = table_job(tmp_path, urls(kind), f"SELECT id, {text} AS text FROM {series}")
    with closing(open_source(job, START)) as source:
        rows = iter(source)
        next(rows)
        held, num_rows = [resident()], 0
        for num_rows, _ in enumerate(rows, start=1):
            if num_rows % 1000 == 0:
                held.append(resident())
        assert num_rows == count - 1
    assert max(held) - held[0] < 10 << 20  # the result has as much or more
    source = open_source(job, START)
    next(iter(source))
    source.close()  # an early end closes the cursor


def resident() -> int:
    found = resident_bytes(os.getpid())
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_outputs_into_a_table(tmp_path: Path, urls: Any, kind: str) -> None:
    url = urls(kind)
    sink = {"kind": "sql", "url": url, "name": "found"}
    job = job_in(tmp_path, lines(*map(ask, range(5))), sink=sink, checkpoint_records=2)
    process = os.fork()
    if process == 0:
        _die_at(Ledger, "commit", 2, job)
    assert os.waitpid(process, 0)[1] == 9 << 8
    assert len(services.rows_of(url, "SELECT id FROM found", tmp_path)) == 4
    assert books(run_job(job, None, How(resume=True))) == (5, 5, 0, 0)
    rows = services.rows_of(url, "SELECT output FROM found", tmp_path)
    found = sorted(json.loads(row)["request_id"] for (row,) in rows)
    assert found == [f"r{number}" for number in range(5)]


@pytest.mark.parametrize("url", ["sqlite:none.db", "postgresql://test@127.0.0.1:1/none"])
def test_a_database_that_is_not_there(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceRefused):
        run_job(table_job(tmp_path, url, ROWS), None, How())


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("redis", "redis://127.0.0.1:1/0"),
        ("nats", "nats://127.0.0.1:1"),
        ("rabbitmq", "amqp://guest:guest@127.0.0.1:1/"),
    ],
)
def test_a_queue_that_is_not_there(tmp_path: Path, kind: str, url: str) -> None:
    with pytest.raises(EngineUnavailable, match=kind):
        run_job(queue_job(tmp_path, kind, url), None, How())
