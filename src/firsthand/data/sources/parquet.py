"""Parquet, row group by row group: the extra `data`.

Owns: rows of typed values, and which files are not opened.
May not know: the contract; what a field means.
Read next: `files.py`; `../contract.py`.

An extension type may name code that makes its values. None is loaded: such a file is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from firsthand.data.record import Position, Reason, Record, Rejected
from firsthand.data.source import NO_LIMITS, Flaw, refused, row_record, too_long_flaw
from firsthand.errors import SourceRefused

BATCH_ROWS = 256
PLAIN = 8  # bytes that a character of JSON may have in a file, at most
EXTENSION = b"ARROW:extension:name"


def read_parquet(
    stream: BinaryIO, after: Position
) -> tuple[int, tuple[str, ...], Iterator[Record | Rejected]]:
    """The number of rows, the columns, and the rows behind `after`. Raises SourceRefused."""
    try:
        file = pq.ParquetFile(stream, memory_map=False)
        for field in file.schema_arrow:
            _check_type(field)
        _check_groups(file.metadata)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceRefused("parquet", str(error)[:200]) from error
    names = file.schema_arrow.names
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise SourceRefused("parquet", f"the column {doubled[:80]!r} stands there twice")
    return file.metadata.num_rows, tuple(names), _rows(file, after.record)


def rows_of_groups(path: Path) -> list[int]:
    """How many rows each row group has, of a file that was opened before."""
    metadata = pq.read_metadata(path)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _check_type(field: Any) -> None:
    if isinstance(field.type, pa.BaseExtensionType) or EXTENSION in (field.metadata or {}):
        raise SourceRefused("parquet", f"the column {field.name[:80]!r} has an extension type")
    for index in range(field.type.num_fields):
        _check_type(field.type.field(index))


def _check_groups(metadata: Any) -> None:
    """Rows are read by pages, which hold them whole: what the file itself says of their sizes is
    asked before. A row that has its group for itself is refused alone, by `_rows`."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows > 1 and _is_huge(group):
            mean = group.total_byte_size // group.num_rows
            message = f"row group {number + 1} has {group.num_rows} rows of {mean} bytes, in mean"
            limit = NO_LIMITS.record_bytes
            raise SourceRefused("parquet", f"{message}; the limit is {limit} per record")


def _is_huge(group: Any) -> bool:
    """Whether there is a row in it that is too long for sure."""
    most = group.num_rows * PLAIN * NO_LIMITS.record_bytes
    return bool(group.num_rows and group.total_byte_size > most)


def _rows(file: Any, num_before: int) -> Iterator[Record | Rejected]:
    row = 0
    try:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            if row + group.num_rows <= num_before:
                row += group.num_rows
            elif _is_huge(group):
                row += 1
                flaw = too_long_flaw(group.total_byte_size, NO_LIMITS)
                yield refused(Position(row, row, 0, 0, 1, row), b"", flaw)
            else:
                for fields in _fields(file, number):
                    row += 1
                    if row <= num_before:
                        continue
                    if isinstance(fields, Flaw):
                        yield refused(Position(row, row, 0, 0, 1, row), b"", fields)
                    else:
                        yield row_record(row, row, fields)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceRefused("parquet", f"row {row + 1}: {str(error)[:200]}") from error


def _fields(file: Any, group: int) -> Iterator[dict[str, Any] | Flaw]:
    for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group]):
        yield from _values(batch)


def _values(batch: Any) -> Iterator[dict[str, Any] | Flaw]:
    """Of each row; a text that is not UTF-8 costs its own row alone."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for number in range(batch.num_rows):
            try:
                yield batch.slice(number, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield Flaw(Reason.BAD_ENCODING, f"a text is not UTF-8: {error.reason}")
