"""Kinds of files: JSON arrays, Parquet, UTF-16; each from any record on, and hostile ones."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firsthand.data.check import Report, check_file
from firsthand.data.contract import Ask
from firsthand.data.record import START, Position, Record, Rejected
from firsthand.data.running import How, run_job
from firsthand.data.source import Limits
from firsthand.data.sources.files import Reading, open_file
from firsthand.errors import SourceRefused
from tests.data.jobs import ask, job_in, lines, outputs

Item = Record | Rejected


def read(path: Path, after: Position = START, **how: Any) -> list[Item]:
    with closing(open_file(path, Reading(**how), Ask, after)) as source:
        return list(source)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)


ROWS = [ask(number, '两\n行 "x" \\ ],' if number % 3 else "b") for number in range(10)]
FILES: dict[str, Any] = {
    "a.jsonl": lines(*ROWS[:4]) + b"\n{bad}\n" + lines(*ROWS[4:]),
    "b.json": json.dumps([*ROWS, [1], {"request_id": "x"}], indent=1, ensure_ascii=False).encode(),
    "c.csv": b"request_id,text\n"
    + b"".join(b'%d,"a\r\nb ""c"""\n' % n if n % 2 else b"%d,plain\n\n" % n for n in range(8))
    + b'9,"open\n10,ok\n',
    "d16.csv": 'request_id;text\r\n1;\u0a0a ਊ\n2;"a\r\n\u0d0a"\r\n3;d\n'.encode("utf-16"),
    "e16be.jsonl": b"\xfe\xff" + lines(*ROWS).decode().encode("utf-16-be"),
    "f32.jsonl": lines(*ROWS).decode().encode("utf-32"),
    "g.parquet": None,
}


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path: Path = tmp_path / request.param
    if FILES[request.param] is None:
        write_parquet(path, ROWS)
    else:
        path.write_bytes(FILES[request.param])
    return path


@pytest.mark.parametrize("file", FILES, indirect=True)
def test_reading_goes_on_behind_any_record(file: Path) -> None:
    whole = read(file)
    assert len(whole) >= 3
    for number, item in enumerate(whole, 1):
        assert item.position.record == number
        assert read(file, item.position) == whole[number:]


@pytest.mark.parametrize("file", [name for name in FILES if name[0] in "bdefg"], indirect=True)
def test_fields_and_places(file: Path) -> None:
    content = file.read_bytes()
    items = read(file)
    if file.name in ("b.json", "e16be.jsonl", "f32.jsonl", "g.parquet"):
        found = [one.fields for one in items if isinstance(one, Record)]
        assert found[:10] == ROWS
    else:
        texts = [one.fields["text"] for one in items if isinstance(one, Record)]
        assert texts == ["\u0a0a ਊ", "a\r\n\u0d0a", "d"]
        assert [one.position.line for one in items] == [2, 3, 5]
    if file.suffix != ".parquet":
        assert all(content[one.position.offset :].startswith(one.raw) for one in items)


def test_an_array_counts_its_lines_and_refuses_elements(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'[\n{"request_id": "1",\n "text": "a"},\n[2], {"a": NaN}, 3 ]\n')
    first, *others = read(path)
    assert isinstance(first, Record) and (first.position.line, first.position.num_lines) == (2, 2)
    refused = [one for one in others if isinstance(one, Rejected)]
    assert [(one.position.line, str(one.reason)) for one in refused] == [
        (4, "not_an_object"),
        (4, "bad_json"),
        (4, "not_an_object"),
    ]


@pytest.mark.parametrize(
    ("content", "num_read", "why"),
    [
        (b"[]", 0, None),
        (b" [ ] \n", 0, None),
        (b"\xef\xbb\xbf[{}]", 1, None),
        (b"", 0, "is no"),
        (b'{"a": 1}', 0, "is no"),
        (b"[{},]", 1, "no element"),
        (b"[,{}]", 0, "no element"),
        (b"[{}] x", 1, "behind the array"),
        (b"[{}, {", 1, "breaks off"),
        (b'[{"a": "', 0, "breaks off"),
        (b"[{}", 0, "breaks off"),
    ],
)
def test_what_is_no_array(tmp_path: Path, content: bytes, num_read: int, why: str | None) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    found: list[Item] = []
    with closing(open_file(path, Reading(), Ask)) as source:
        if why is None:
            found.extend(source)
        else:
            with pytest.raises(SourceRefused, match=why):
                found.extend(source)
    assert len(found) == num_read


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_an_array_is_the_same_for_any_size_of_a_buffer(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(FILES["b.json"])
    whole = read(path)
    monkeypatch.setattr("firsthand.data.sources.json_array.CHUNK_BYTES", size)
    assert read(path) == whole


def test_an_element_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    long = json.dumps({"request_id": "x", "text": '[]{}\\"' * 60_000})
    path.write_text(f'[{{"a": 1}}, {long}, {{"b": 2}}]')
    _, second, third = read(path, limits=Limits(record_bytes=100_000))
    assert isinstance(second, Rejected) and second.reason == "too_long"
    assert second.position.num_bytes == len(long) and len(second.raw) > 65_000
    assert long.encode().startswith(second.raw)
    assert isinstance(third, Record) and third.fields == {"b": 2}


def test_utf_16_must_say_its_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(*ROWS).decode().encode("utf-16-le"))
    with pytest.raises(SourceRefused, match="utf-16"):
        read(path, encoding="utf-16")
    assert len([one for one in read(path, encoding="utf-16-le") if isinstance(one, Record)]) == 10
    path.write_bytes(path.read_bytes()[:-3])
    *_, last = read(path, encoding="utf-16-le")
    assert isinstance(last, Rejected) and last.reason in ("bad_encoding", "bad_json")


def test_s_82_an_extension_type_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    field = pa.field(
        "text", pa.string(), metadata={"ARROW:extension:name": "arrow.py_extension_type"}
    )
    pq.write_table(pa.table([pa.array(["a"])], pa.schema([field])), path)
    with pytest.raises(SourceRefused, match="extension"):
        read(path)
    path.write_bytes(b"PAR1 no parquet PAR1")
    with pytest.raises(SourceRefused, match="parquet"):
        read(path)


def test_batch_and_file_kinds_give_equal_outputs(tmp_path: Path) -> None:
    """The same records from each kind of file."""
    rows = [{"request_id": f"{n}", "text": f"text {n}", "max_length": n % 7} for n in range(20)]
    csv = "request_id,text,max_length\n" + "".join(
        ",".join(str(value) for value in row.values()) + "\n" for row in rows
    )
    write_parquet(tmp_path / "in.parquet", rows)
    contents = {
        "in.jsonl": lines(*rows),
        "in.json": json.dumps(rows).encode(),
        "in.csv": csv.encode(),
    }
    found = {}
    for name in (*contents, "in.parquet"):
        if name in contents:
            (tmp_path / name).write_bytes(contents[name])
        sink = {"path": f"{name}.out"}
        outcome = run_job(job_in(tmp_path, source={"path": name}, sink=sink), None, How())
        assert (outcome.books.accepted, outcome.books.quarantined) == (17, 3)
        found[name] = outputs(tmp_path, f"{name}.out")
        for one in found[name]:
            del one["firsthand"]
    assert all(one == found["in.jsonl"] for one in found.values())


def test_d_11_a_huge_row_of_parquet_is_refused_unread(tmp_path: Path) -> None:
    """By the sizes that the file states; read, it would have kept the start of its bytes."""
    path = tmp_path / "in.parquet"
    huge = {"request_id": "huge", "text": "x" * (9 << 20)}
    rows = [[ask(1), ask(2)], [huge], [ask(3)]]
    tables = [pa.Table.from_pylist(group) for group in rows]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    found = read(path)
    assert [one.position.record for one in found] == [1, 2, 3, 4]
    refused = [one for one in found if isinstance(one, Rejected)]
    assert [(one.position.record, one.reason, one.raw) for one in refused] == [(3, "too_long", b"")]
    with pq.ParquetWriter(path, tables[0].schema) as writer:
        writer.write_table(pa.Table.from_pylist([huge, {**huge, "text": "y" * (9 << 20)}]))
    with pytest.raises(SourceRefused, match="row group 1 has 2 rows of 94"):
        read(path)


def test_outputs_into_parquet(tmp_path: Path) -> None:
    table: dict[str, Any] = {"sink": {"path": "out.parquet"}, "checkpoint_records": 4}
    job = job_in(tmp_path, lines(*map(ask, range(10))), **table)
    run_job(job, None, How(limit=6))
    (tmp_path / "out.parquet" / "part-000002.new").write_bytes(b"half")
    (tmp_path / "out.parquet" / "part-000003.parquet").write_bytes(b"not committed")
    run_job(job, None, How(resume=True))
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [one["request_id"] for one in found] == [f"r{number}" for number in range(10)]
    assert len(list((tmp_path / "out.parquet").iterdir())) == 3


def test_outputs_in_parquet_have_one_schema(tmp_path: Path) -> None:
    """What is mixed in the first step is JSON's text; what does not fit later is held."""
    (tmp_path / "own.py").write_text(
        "def given(values):\n"
        "    number = int(values['request_id'][1:])\n"
        "    more = [{}, {'a': 1}, 1, 's', None, 2**70][number % 6]\n"
        "    return {**values, 'mixed': more, 'plain': 's' if number == 8 else number}\n"
    )
    table: dict[str, Any] = {
        "sink": {"path": "out.parquet"},
        "checkpoint_records": 6,
        "transform": [{"use": "own.py:given"}],
    }
    job = job_in(tmp_path, lines(*map(ask, range(18))), **table)
    run_job(job, None, How(limit=6))
    outcome = run_job(job, None, How(resume=True))
    assert (outcome.books.accepted, dict(outcome.books.reasons)) == (17, {"wrong_type": 1})
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [one["plain"] for one in found] == [n for n in range(18) if n != 8]
    assert [one["mixed"] for one in found][:6] == ["{}", '{"a": 1}', "1", '"s"', None, str(2**70)]
    assert len({str(pq.read_schema(one)) for one in (tmp_path / "out.parquet").iterdir()}) == 1


def test_rows_of_parquet_are_held_to_the_rules_of_lines(tmp_path: Path) -> None:
    broken = pa.array([b"good", b"\xff\xfe", b"a\0b", b"x" * (2 << 20), b"last"])
    texts = pa.Array.from_buffers(pa.utf8(), 5, broken.buffers())
    ids = pa.array([f"r{number}" for number in range(5)])
    pq.write_table(pa.table({"request_id": ids, "text": texts}), tmp_path / "a.parquet")
    *found, report = check_file(tmp_path / "a.parquet", Ask, Reading())
    assert isinstance(report, Report)
    assert (report.books.read, report.books.accepted) == (5, 2)
    reasons = [one.reason for one in found if isinstance(one, Rejected)]
    assert reasons == ["bad_encoding", "nul", "too_long"]
    double = pa.Table.from_arrays([ids, ids, ids], names=["request_id", "text", "text"])
    pq.write_table(double, tmp_path / "b.parquet")
    with pytest.raises(SourceRefused, match="'text' stands there twice"):
        list(check_file(tmp_path / "b.parquet", Ask, Reading()))


LONG = b"\\n" * 4_000_000
HOSTILE: dict[str, Callable[[], Iterable[bytes]]] = {
    "long_field.csv": lambda: itertools.chain(
        [b"request_id,text\n1,"], itertools.repeat(b"x" * 65536, 1000), [b"\n2,good\n"]
    ),
    "open_quote.csv": lambda: itertools.chain(
        [b'request_id,text\n2,good\n1,"'], itertools.repeat(b"x," * 500 + b"\n", 2000)
    ),
    "deep.jsonl": lambda: [b"[" * 100_000, b"\n", lines(ask(2))],
    "deep.json": lambda: [b'[{"a":', b"[" * 100_000, b"]" * 100_000, b"},", lines(ask(2)), b"]"],
    "wide.jsonl": lambda: [b'{"request_id": "1", "text": "', LONG, b'"}\n', lines(ask(2))],
}


@pytest.mark.process
@pytest.mark.parametrize("name", HOSTILE)
def test_d_11_memory_stays_flat_over_hostile_files(tmp_path: Path, name: str) -> None:
    """In a process of its own, so that its peak is its own."""
    path = tmp_path / name
    with path.open("wb") as stream:
        for piece in HOSTILE[name]():
            stream.write(piece)
    code = (
        "import sys; from pathlib import Path\n"
        "from firsthand.processes import peak_resident_bytes\n"
        "from firsthand.data.check import check_file; from firsthand.data.contract import Ask\n"
        "from firsthand.data.sources.files import Reading\n"
        "*_, report = check_file(Path(sys.argv[1]), Ask, Reading())\n"
        "peak = peak_resident_bytes() >> 20\n"
        "print(report.books.accepted, report.books.quarantined, peak)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    accepted, quarantined, peak_mib = map(int, done.stdout.split())
    assert accepted == 1 and quarantined >= 1 and peak_mib <= 256


def test_columns_beyond_the_limit_refuse_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b",".join(b"c%d" % number for number in range(100_000)) + b"\n")
    with pytest.raises(SourceRefused, match="columns"):
        *_, report = check_file(path, Ask, Reading())
        assert isinstance(report, Report)
