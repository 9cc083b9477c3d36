"""Files as sources: by their kind, in one encoding, unchanged from the first byte to the last.

Owns: which reader a file gets, what is said of it, and that it stays what it was.
May not know: what becomes of a record.
Read next: `jsonl.py`, `csv_file.py`, `json_array.py`, `parquet.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import BinaryIO

from firsthand.checks import check_choice
from firsthand.data.contract import Contract
from firsthand.data.encoding import Encoding, decide, has_lines
from firsthand.data.record import START, Position, Record, Rejected
from firsthand.data.source import Limits, Source, SourceFacts
from firsthand.data.sources.csv_file import CsvReader
from firsthand.data.sources.json_array import read_json_array
from firsthand.data.sources.jsonl import read_jsonl
from firsthand.errors import SourceRefused
from firsthand.values import dataclass

KINDS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
}
BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is to be read; None: it is found out, and said. An `Encoding` was decided before,
    by whoever reads only a part of the file."""

    kind: str | None = None
    encoding: str | Encoding | None = None
    delimiter: str | None = None
    limits: Limits = field(default_factory=Limits)


class FileSource:
    """An open file. It is one view: a file that changes while it is read is refused."""

    def __init__(
        self, stream: BinaryIO, facts: SourceFacts, records: Iterable[Record | Rejected]
    ) -> None:
        self._stream = stream
        self._records = records
        self.facts = facts

    def __iter__(self) -> Iterator[Record | Rejected]:
        yield from self._records
        self.check()

    def check(self) -> None:
        if version_of(self._stream) != self.facts.version:
            raise SourceRefused(self.facts.name, "changed while it was read")

    def done(self, positions: Sequence[Position]) -> None: ...

    def close(self) -> None:
        self._stream.close()


def version_of(stream: BinaryIO) -> str:
    """What tells a file's content from what it was before: size and time of its last change."""
    status = os.fstat(stream.fileno())
    return f"{status.st_size} {status.st_mtime_ns}"


def open_file(
    path: Path, reading: Reading, contract: type[Contract], after: Position = START
) -> Source:
    """Its records behind `after`.

    Raises SourceRefused: no such file, an encoding without lines of bytes, a header that lacks
    what the contract needs.
    """
    try:
        stream = path.open("rb", buffering=BUFFER_BYTES)
    except OSError as error:
        raise SourceRefused(str(path), f"cannot be read: {error.strerror}") from error
    try:
        kind = kind_of(path, reading.kind)
        facts = SourceFacts(
            kind, str(path), size=os.fstat(stream.fileno()).st_size, version=version_of(stream)
        )
        if kind == "parquet":
            from firsthand.data.sources.parquet import read_parquet

            size, columns, rows = read_parquet(stream, after)
            check_columns(columns, contract)
            return FileSource(stream, replace(facts, size=size, columns=columns), rows)
        return _text_source(stream, facts, reading, contract, after)
    except BaseException:
        stream.close()
        raise


def _text_source(
    stream: BinaryIO,
    facts: SourceFacts,
    reading: Reading,
    contract: type[Contract],
    after: Position,
) -> Source:
    said = reading.encoding
    encoding = said if isinstance(said, Encoding) else decide(stream, said)
    facts = replace(facts, encoding=encoding)
    if not has_lines(encoding.name) or (facts.kind == "json" and len(encoding.newline) > 1):
        raise SourceRefused("encoding", f"{encoding.name} is not read; convert it to UTF-8")
    if facts.kind == "jsonl":
        return FileSource(stream, facts, read_jsonl(stream, encoding, reading.limits, after))
    if facts.kind == "json":
        return FileSource(stream, facts, read_json_array(stream, encoding, reading.limits, after))
    rows = CsvReader(stream, encoding, reading.delimiter, reading.limits, after)
    check_columns(rows.header.columns, contract)
    facts = replace(facts, delimiter=rows.header.delimiter, columns=rows.header.columns)
    return FileSource(stream, facts, rows)


def kind_of(path: Path, kind: str | None) -> str:
    if kind is not None:
        check_choice("kind", kind, sorted(set(KINDS.values())))
        return kind
    known = KINDS.get(path.suffix.lower())
    if known is None:
        raise SourceRefused(str(path), f"is none of {', '.join(KINDS)}: say its kind")
    return known


def check_columns(columns: Sequence[str], contract: type[Contract]) -> None:
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
