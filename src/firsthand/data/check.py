"""A file checked against a contract from its first byte to its last, and the books of it.

Owns: which reader a file gets, how a run over it is counted, the report.
May not know: how it is shown.
Read next: `stages.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import field
from pathlib import Path

from firsthand.checks import check_choice
from firsthand.data.contract import Checker, Contract, contract_hash
from firsthand.data.csv_file import CsvReader
from firsthand.data.encoding import Encoding, decide, has_single_line_feeds
from firsthand.data.jsonl import read_jsonl
from firsthand.data.record import Accepted, Duplicate, Record, Rejected
from firsthand.data.seen import Seen
from firsthand.data.source import Limits
from firsthand.data.stages import checked, unique
from firsthand.errors import SourceRefused
from firsthand.values import dataclass

KINDS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
BUFFER_BYTES = 1024 * 1024
Item = Accepted | Rejected | Duplicate


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is to be read; None: it is found out, and said."""

    kind: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class Books:
    """What became of everything that was read."""

    accepted: int = 0
    quarantined: int = 0
    duplicates: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        return self.accepted + self.quarantined + self.duplicates

    def count(self, items: Iterable[Item]) -> Iterator[Item]:
        """Items as they are, counted as they pass."""
        for item in items:
            if isinstance(item, Accepted):
                self.accepted += 1
            elif isinstance(item, Duplicate):
                self.duplicates += 1
            else:
                self.quarantined += 1
                self.reasons[item.reason] += 1
            yield item


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file whose encoding and header are known, and its records."""

    kind: str
    encoding: Encoding
    delimiter: str | None
    records: Iterable[Record | Rejected]


@contextmanager
def opened(path: Path, reading: Reading, contract: type[Contract]) -> Iterator[OpenFile]:
    """Raises SourceRefused: no such file, an encoding without lines of bytes, a header that lacks
    what the contract needs."""
    kind = kind_of(path, reading.kind)
    try:
        stream = path.open("rb", buffering=BUFFER_BYTES)
    except OSError as error:
        raise SourceRefused(str(path), f"cannot be read: {error.strerror}") from error
    with stream:
        encoding = decide(stream, reading.encoding)
        if not has_single_line_feeds(encoding.name):
            raise SourceRefused("encoding", f"{encoding.name} is not read; convert it to UTF-8")
        stream.seek(encoding.mark_bytes)
        if kind == "jsonl":
            yield OpenFile(kind, encoding, None, read_jsonl(stream, encoding, reading.limits))
            return
        rows = CsvReader(stream, encoding, reading.delimiter, reading.limits)
        _check_columns(rows.header.columns, contract)
        yield OpenFile(kind, encoding, rows.header.delimiter, rows)


def kind_of(path: Path, kind: str | None) -> str:
    if kind is not None:
        check_choice("kind", kind, ("csv", "jsonl"))
        return kind
    known = KINDS.get(path.suffix.lower())
    if known is None:
        raise SourceRefused(str(path), f"is none of {', '.join(KINDS)}: say its kind")
    return known


def _check_columns(columns: tuple[str, ...], contract: type[Contract]) -> None:
    """A missing column would refuse every row for the same reason, so the file is refused."""
    if not columns:
        return
    known = contract.model_fields
    unknown = [name for name in columns if name not in known]
    missing = [name for name, info in known.items() if info.is_required() and name not in columns]
    if missing:
        others = f"; the header has {', '.join(map(repr, unknown))}" if unknown else ""
        raise SourceRefused("header", f"has no column {', '.join(map(repr, missing))}{others}")
    if unknown and contract.model_config.get("extra") == "forbid":
        names = ", ".join(map(repr, unknown))
        raise SourceRefused("header", f"the contract {contract.__name__} knows no column {names}")


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a check."""

    books: Books
    encoding: Encoding
    kind: str
    delimiter: str | None
    contract: str
    contract_hash: str


def check_file(path: Path, contract: type[Contract], reading: Reading) -> Iterator[Item | Report]:
    """Every record of a file with what became of it, and at the end the report."""
    with closing(Seen()) as seen, opened(path, reading, contract) as file:
        books = Books()
        items = checked(file.records, Checker(contract), from_texts=file.kind == "csv")
        yield from books.count(unique(items, seen))
        yield Report(
            books,
            file.encoding,
            file.kind,
            file.delimiter,
            f"{contract.__name__} {contract.version}",
            contract_hash(contract),
        )
