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
from firsthand.data.source import Flaw, refused, row_record
from firsthand.errors import SourceRefused

BATCH_ROWS = 256
EXTENSION = b"ARROW:extension:name"


def read_parquet(
    stream: BinaryIO, after: Position
) -> tuple[int, tuple[str, ...], Iterator[Record | Rejected]]:
    """The number of rows, the columns, and the rows behind `after`. Raises SourceRefused."""
    try:
        file = pq.ParquetFile(stream, memory_map=False)
        for field in file.schema_arrow:
            _check_type(field)
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


def _rows(file: Any, num_before: int) -> Iterator[Record | Rejected]:
    row, groups = 0, list[int]()
    for group in range(file.num_row_groups):
        num_rows = file.metadata.row_group(group).num_rows
        if not groups and row + num_rows <= num_before:
            row += num_rows
        else:
            groups.append(group)
    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups):
            for fields in _values(batch):
                row += 1
                if row <= num_before:
                    continue
                if isinstance(fields, Flaw):
                    yield refused(Position(row, row, 0, 0, 1, row), b"", fields)
                else:
                    yield row_record(row, row, fields)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceRefused("parquet", f"row {row + 1}: {str(error)[:200]}") from error


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
