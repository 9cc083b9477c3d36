"""Files through the whole way: what is accepted, refused, double, and where it stood."""

import itertools
import json
from contextlib import closing
from pathlib import Path

import pytest

from firsthand.data.books import Books
from firsthand.data.check import Report, check_file
from firsthand.data.contract import Ask, find_contract
from firsthand.data.record import Accepted, Duplicate, Reason, Record, Rejected
from firsthand.data.source import Limits
from firsthand.data.sources.files import Reading, open_file
from firsthand.errors import InvalidRequest, SourceRefused

HEAD = b"request_id,text,max_length\n"


def outcome(
    path: Path, content: bytes, reading: Reading | None = None
) -> tuple[Report, list[Accepted], list[Rejected]]:
    path.write_bytes(content)
    *items, report = check_file(path, Ask, reading or Reading())
    assert isinstance(report, Report)
    return (
        report,
        [one for one in items if isinstance(one, Accepted)],
        [one for one in items if isinstance(one, Rejected)],
    )


def texts(accepted: list[Accepted]) -> list[str]:
    return [one.values["text"] for one in accepted]


def lines(*objects: object) -> bytes:
    return b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in objects)


def test_books_balance_and_a_refused_record_takes_no_key(tmp_path: Path) -> None:
    report, accepted, rejected = outcome(
        tmp_path / "a.jsonl",
        lines(
            {"request_id": "1", "text": ""},
            {"request_id": "1", "text": "one"},
            {"request_id": "1", "text": "again"},
            {"request_id": "2", "text": "two", "max_length": 2049},
        ),
    )
    assert report.books == Books(1, 2, 1, report.books.reasons)
    assert report.books.read == 4
    assert dict(report.books.reasons) == {"blank": 1, "out_of_range": 1}
    assert accepted[0].values == {"request_id": "1", "text": "one", "max_length": 512}
    assert [one.position.line for one in rejected] == [1, 4]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"", None),
        (b"{", Reason.BAD_JSON),
        (b"[1]", Reason.NOT_AN_OBJECT),
        (b"[" * 100_000, Reason.BAD_JSON),
        (b'{"request_id":"1","text":"a","max_length":1e999}', Reason.BAD_JSON),
        (b'{"request_id":"1","text":"a","max_length":NaN}', Reason.BAD_JSON),
        (b'{"request_id":"1","text":"a","max_length":1' + b"0" * 400 + b"}", Reason.BAD_JSON),
        (b'{"request_id":"1","request_id":"2","text":"a"}', Reason.DUPLICATE_KEY),
        (b'{"request_id":"1","text":"a\\u0000"}', Reason.NUL),
        (b'{"request_id":"1","text":"a\x00"}', Reason.NUL),
        (b'{"request_id":"1","text":"\\\\u0000"}', None),
        (b'{"request_id":"1","text":"\\ud800"}', Reason.BAD_JSON),
        (b'{"request_id":"1","text":"\xff"}', Reason.BAD_ENCODING),
        (b'{"request_id":1,"text":"a"}', Reason.WRONG_TYPE),
        (b'{"request_id":true,"text":"a"}', Reason.WRONG_TYPE),
        (b'{"request_id":"1","text":"a","max_length":"5"}', Reason.WRONG_TYPE),
        (b'{"request_id":"1","text":"a","max_length":5.5}', Reason.WRONG_TYPE),
        (b'{"request_id":"1","text":"a","other":1}', Reason.UNKNOWN_FIELD),
        (b'{"request_id":"1"}', Reason.MISSING_FIELD),
        (b'{"request_id":"00123","text":"a"}', None),
    ],
)
def test_data_7_10_12_one_bad_line_costs_itself_alone(
    tmp_path: Path, row: bytes, reason: Reason | None
) -> None:
    good = b'{"request_id":"%d","text":"good"}\n'
    report, accepted, rejected = outcome(tmp_path / "a.jsonl", good % 10 + row + b"\n" + good % 11)
    assert [one.reason for one in rejected] == ([] if reason is None else [reason])
    assert [one.values["request_id"] for one in accepted][:: len(accepted) - 1] == ["10", "11"]
    assert report.books.read == 2 + (row != b"")
    if rejected:
        assert rejected[0].position.line == 2 and rejected[0].raw.rstrip(b"\n") == row[:65536]


def test_data_9_a_line_beyond_the_limit_and_the_numbers_behind_it(tmp_path: Path) -> None:
    row = b'{"request_id":"%d","text":"x"}\n'
    content = row % 1 + row % 2 + b"y" * 3_000_000 + b"\n{broken\n" + row % 5
    report, accepted, rejected = outcome(tmp_path / "a.jsonl", content)
    assert [one.values["request_id"] for one in accepted] == ["1", "2", "5"]
    assert [(one.position.line, one.reason) for one in rejected] == [
        (3, Reason.TOO_LONG),
        (4, Reason.BAD_JSON),
    ]
    assert rejected[0].position.num_bytes == 3_000_001 and len(rejected[0].raw) == 65536
    assert content[rejected[1].position.offset :].startswith(b"{broken\n")
    assert report.books.read == 5


def test_data_11_only_lf_and_crlf_end_a_line(tmp_path: Path) -> None:
    content = lines(
        {"request_id": "1", "text": "a\u2028b\x85c"}, {"request_id": "2", "text": "c"}
    ).replace(b"}\n", b"}\r\n", 1)
    _, accepted, _ = outcome(tmp_path / "a.jsonl", content)
    assert texts(accepted) == ["a\u2028b\x85c", "c"]


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("a.jsonl", b"", 0),
        ("a.csv", b"", 0),
        ("a.csv", HEAD, 0),
        ("a.csv", HEAD[:-1], 0),
        ("a.csv", HEAD + b"1,a,", 1),
        ("a.csv", HEAD + b"\n1,a,5\n\r\n2,b,6\n\n", 2),
        ("a.jsonl", b'\n{"request_id":"1","text":"a"}\n\n{"request_id":"2","text":"a"}', 2),
    ],
)
def test_data_14_edges(tmp_path: Path, name: str, content: bytes, read: int) -> None:
    report, accepted, _ = outcome(tmp_path / name, content)
    assert report.books.read == read == len(accepted)


def test_data_6_8_rows_of_csv(tmp_path: Path) -> None:
    content = HEAD + (
        b'1,"x\ny",5\n'  # lines 2 and 3
        b"2,b\n"
        b"3,c,5,6\n"
        b"4,d,5,\n"
        b'5,"he said ""no"", 5",007\n'
        b'6,"open,5\n'
        b"7,still read,5\n"
        b'8,a 5" disk,5\n'
        b'9,"a"b,5\n'
        b"10,n\x00,5\n"
    )
    report, accepted, rejected = outcome(tmp_path / "a.csv", content)
    assert texts(accepted) == ["x\ny", "still read", 'a 5" disk']
    found = [(one.position.record, one.position.line, one.reason) for one in rejected]
    assert found == [
        (2, 4, Reason.COLUMN_COUNT),
        (3, 5, Reason.COLUMN_COUNT),
        (4, 6, Reason.COLUMN_COUNT),
        (5, 7, Reason.WRONG_TYPE),
        (6, 8, Reason.BAD_QUOTES),
        (9, 11, Reason.BAD_QUOTES),
        (10, 12, Reason.NUL),
    ]
    assert rejected[0].detail == "2 fields; the header has 3"
    for one in rejected:
        assert content[one.position.offset :].startswith(one.raw)
    assert report.source.delimiter == ","


def test_d_11_an_open_quote_to_the_end_of_a_large_file(tmp_path: Path) -> None:
    rows = b"".join(b"%d,text,5\n" % i for i in range(1, 20_000))
    report, _, rejected = outcome(
        tmp_path / "a.csv",
        HEAD + b'0,"open,5\n' + rows,
        Reading(limits=Limits(record_bytes=65536)),
    )
    assert report.books.accepted == 19_999 and len(rejected) == 1


def test_data_13_a_renamed_column_refuses_the_file_by_both_names(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match=r"no column 'text'; the header has 'txt'"):
        outcome(tmp_path / "a.csv", b"request_id,txt,max_length\n1,a,5\n")
    with pytest.raises(SourceRefused, match=r"knows no column 'note'"):
        outcome(tmp_path / "a.csv", b"request_id,text,note\n1,a,5\n")
    with pytest.raises(SourceRefused, match=r"'text' stands there twice"):
        outcome(tmp_path / "a.csv", b"request_id,text,text\n1,a,5\n")
    with pytest.raises(SourceRefused, match="CR alone"):
        outcome(tmp_path / "a.csv", b"request_id,text\r1,a\r")


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_the_headers(tmp_path: Path, delimiter: str) -> None:
    rows = [("request_id", "text"), ("1", "a"), ("2", "b")]
    content = "".join(delimiter.join(row) + "\n" for row in rows).encode()
    report, accepted, _ = outcome(tmp_path / "a.csv", content)
    assert texts(accepted) == ["a", "b"] and report.source.delimiter == delimiter


@pytest.mark.parametrize("limit", [64 * 1024 - 3, 64 * 1024, 256 * 1024])
def test_data_4_characters_on_the_edges_of_buffers(tmp_path: Path, limit: int) -> None:
    for name, shift in itertools.product(("utf-8", "gb18030"), range(4)):
        text = "x" * (limit - 60 + shift) + "中€𠮷" * 20
        content = HEAD + b"1," + text.encode(name) + b",5\n"
        _, accepted, _ = outcome(tmp_path / "a.csv", content, Reading(encoding=name))
        assert texts(accepted) == [text]


def test_data_5_a_line_in_another_encoding_is_refused_not_guessed(tmp_path: Path) -> None:
    rows = [
        json.dumps({"request_id": str(i), "text": "木头铜瓶和水"}, ensure_ascii=False)
        for i in range(3)
    ]
    content = b"\n".join(row.encode("gbk" if i == 1 else "utf-8") for i, row in enumerate(rows))
    report, accepted, rejected = outcome(tmp_path / "a.jsonl", content)
    assert texts(accepted) == ["木头铜瓶和水"] * 2
    assert [(one.position.line, one.reason) for one in rejected] == [(2, Reason.BAD_ENCODING)]
    encoding = report.source.encoding
    assert encoding is not None and encoding.name == "utf-8" and encoding.note


def test_a_record_keeps_its_bytes_and_place(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf" + HEAD + b'1,"a\r\nb",5\r\n2,c,\n')
    with closing(open_file(path, Reading(), Ask)) as file:
        records = list(file)
    content = path.read_bytes()
    for record in records:
        assert isinstance(record, Record)
        assert content[record.position.offset :].startswith(record.raw)
    encoding = file.facts.encoding
    assert encoding is not None and encoding.how == "mark" and encoding.mark_bytes == 3


def test_a_contract_of_ones_own(tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.write_text(
        "from pydantic import Field\n"
        "from firsthand.data import Contract\n"
        "class Row(Contract):\n"
        "    version = '2'\n"
        "    name: str\n"
        "    urgent: bool = False\n"
        "    share: float | None = None\n"
    )
    contract = find_contract(f"{module}:Row")
    path = tmp_path / "a.csv"
    path.write_bytes(b"name,urgent,share\na,true,0.5\nb,yes,\nc,,nan\nc,,1e3\n")
    *items, report = check_file(path, contract, Reading())
    values = [one.values for one in items if isinstance(one, Accepted)]
    assert values == [
        {"name": "a", "urgent": True, "share": 0.5},
        {"name": "c", "urgent": False, "share": 1000.0},
    ]
    assert not any(isinstance(one, Duplicate) for one in items)
    assert isinstance(report, Report) and report.contract == "Row 2"


@pytest.mark.parametrize("name", ["x", ":x", "no.such:Thing", "firsthand.errors:InvalidRequest"])
def test_a_contract_that_is_none(name: str) -> None:
    with pytest.raises(InvalidRequest, match="contract"):
        find_contract(name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="cannot be read"):
        list(check_file(tmp_path / "none.csv", Ask, Reading()))
    (tmp_path / "none.txt").write_bytes(b"")
    with pytest.raises(SourceRefused, match="say its kind"):
        list(check_file(tmp_path / "none.txt", Ask, Reading()))


def test_a_quoted_field_may_have_what_a_record_may(tmp_path: Path) -> None:
    long = "a" * 200_000
    (tmp_path / "a.csv").write_text(f'\n\r\nrequest_id,text\n1,"{long}"\n2,"{long}\nb"\n3,c\n')
    *_, report = check_file(tmp_path / "a.csv", Ask, Reading())
    assert isinstance(report, Report)
    assert (report.books.read, report.books.accepted) == (3, 3)


def test_a_file_without_an_ending_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match="No such file"):
        list(check_file(tmp_path / "nofile", Ask, Reading()))
