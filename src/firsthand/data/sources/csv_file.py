"""CSV: a header, then a record per row, of which a quoted field may hold line ends.

Owns: the header, the delimiter, which lines make a row, and which rows are refused.
May not know: the contract; what a column means.
Read next: `../contract.py`.

RFC 4180, with the delimiter declared or taken from the header (, ; tab |), and said. A row has as
many fields as the header, else it is refused: nothing is shifted or filled. A trailing comma is one
more, empty field. Blank lines are no rows. A quote that is never closed costs its own line alone:
reading goes on at the next one.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

from firsthand.data.encoding import Encoding
from firsthand.data.lines import Line, read_lines, without_end
from firsthand.data.record import START, Position, Reason, Record, Rejected
from firsthand.data.source import Flaw, Limits, decoded, position_of, refused, too_long
from firsthand.errors import InvalidRequest, SourceRefused
from firsthand.values import dataclass

DELIMITERS = ",;\t|"
MAX_COLUMNS = 4096
NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Header:
    columns: tuple[str, ...]
    delimiter: str


class CsvReader:
    """The rows of a stream behind `after`; the header is read in any case.

    Raises SourceRefused at once: a header that cannot be one. An empty file has no columns.
    """

    def __init__(
        self,
        stream: BinaryIO,
        encoding: Encoding,
        delimiter: str | None = None,
        limits: Limits = NO_LIMITS,
        after: Position = START,
    ) -> None:
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n\0'):
            raise InvalidRequest("delimiter", f"is one character, not {delimiter[:8]!r}")
        csv.field_size_limit(max(csv.field_size_limit(), limits.record_bytes))
        self._encoding = encoding
        self._limits = limits
        self._newline = encoding.newline
        self._blank = (self._newline, "\r\n".encode(encoding.name or "ascii"))
        self._record = after.record
        self._lines = self._lines_from(stream, encoding.mark_bytes, 0)
        self.header = self._read_header(delimiter)
        if after.end:
            self._lines = self._lines_from(stream, after.end, after.last_line)

    def __iter__(self) -> Iterator[Record | Rejected]:
        columns, num_columns = self.header.columns, len(self.header.columns)
        record = self._record
        for line in self._lines:
            if line.content in self._blank:
                continue
            record += 1
            position, raw = position_of(line, record), line.content
            try:
                if line.sha256 is not None:
                    raise too_long(line, self._limits)
                values, taken = self._row(line)
                if len(taken) > 1:
                    raw = b"".join(one.content for one in taken)
                    position = Position(record, line.number, line.offset, len(raw), len(taken))
                if len(values) != num_columns:
                    found = f"{len(values)} fields; the header has {num_columns}"
                    raise Flaw(Reason.COLUMN_COUNT, found)
                fields = dict(zip(columns, values, strict=True))
                yield Record(position, without_end(raw, self._newline), fields, from_texts=True)
            except Flaw as flaw:
                yield refused(position, raw, flaw, line.sha256)

    def _lines_from(self, stream: BinaryIO, start: int, number: int) -> _Lines:
        stream.seek(start)
        return _Lines(read_lines(stream, self._limits.record_bytes, start, number, self._newline))

    def _row(self, line: Line) -> tuple[list[str], list[Line]]:
        """The fields of the row that begins with a line, and its lines. Raises Flaw."""
        if b'"' not in line.content:
            text = decoded(without_end(line.content, self._newline), self._encoding)
            return text.split(self.header.delimiter), [line]
        return self._quoted_row(line, self.header.delimiter)

    def _quoted_row(self, first: Line, delimiter: str) -> tuple[list[str], list[Line]]:
        taken: list[Line] = []

        def texts() -> Iterator[str]:
            num_bytes = 0
            for line in self._lines.from_(first):
                num_bytes += line.num_bytes
                taken.append(line)
                if num_bytes > self._limits.record_bytes:
                    return
                yield decoded(line.content, self._encoding)

        try:
            values = next(csv.reader(texts(), delimiter=delimiter, strict=True))
        except (csv.Error, Flaw, StopIteration) as error:
            self._lines.give_back(taken[1:])
            if isinstance(error, Flaw):
                raise
            raise Flaw(Reason.BAD_QUOTES, str(error)) from error
        return values, taken

    def _read_header(self, delimiter: str | None) -> Header:
        line = next((one for one in self._lines if one.content not in self._blank), None)
        if line is None:
            return Header((), delimiter or ",")
        try:
            if line.sha256 is not None:
                raise too_long(line, self._limits)
            text = decoded(without_end(line.content, self._newline), self._encoding)
            if "\r" in text:
                raise Flaw(Reason.BAD_QUOTES, "lines end in CR alone; LF or CRLF ends a line")
            delimiter = delimiter or max(DELIMITERS, key=text.count)
            columns, _ = self._quoted_row(line, delimiter)
        except Flaw as flaw:
            raise SourceRefused("header", flaw.detail) from flaw
        if len(columns) > MAX_COLUMNS:
            raise SourceRefused("header", f"{len(columns)} columns; the limit is {MAX_COLUMNS}")
        names = [name.strip() for name in columns]
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled is not None:
            raise SourceRefused("header", f"the column {doubled[:80]!r} stands there twice")
        return Header(tuple(names), delimiter)


class _Lines:
    """Lines, of which some can be given back."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._waiting: deque[Line] = deque()

    def __iter__(self) -> Iterator[Line]:
        return self

    def __next__(self) -> Line:
        return self._waiting.popleft() if self._waiting else next(self._lines)

    def from_(self, first: Line) -> Iterator[Line]:
        yield first
        yield from self

    def give_back(self, lines: list[Line]) -> None:
        self._waiting.extendleft(reversed(lines))
