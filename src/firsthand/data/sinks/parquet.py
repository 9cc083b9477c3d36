"""Outputs as a folder of Parquet files, one per step: the extra `data`.

Owns: the files, whole or not there; their one schema, which is that of the first step.
May not know: the form of an output; engines.
Read next: `../pipeline.py`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from firsthand.data.record import Reason
from firsthand.data.source import Flaw
from firsthand.errors import SourceRefused
from firsthand.files import sync

AS_JSON = {"form": "json"}  # said in the column


class ParquetSink:
    """Made by `open_parquet`."""

    def __init__(self, folder: Path, num_files: int, schema: Any = None) -> None:
        self.name = str(folder)
        self._schema = schema  # of the first file, and so of all
        self._folder = folder
        self._num_files = num_files
        self._rows: list[Any] = []

    def add(self, identity: bytes, line: bytes) -> tuple[int, int]:
        row = json.loads(line)
        if self._schema is not None:
            _check(row, self._schema)
        self._rows.append(row)
        return self._num_files, len(line)

    def flush(self) -> Any:
        """Under another name first, so that no reader sees a part of a file."""
        if not self._rows:
            return self._num_files
        path = self._folder / _name(self._num_files)
        new = path.with_suffix(".new")
        with new.open("wb") as stream:
            self._schema = self._schema or _schema_of(self._rows)
            rows = [_as_written(row, self._schema) for row in self._rows]
            pq.write_table(pa.Table.from_pylist(rows, schema=self._schema), stream)
            stream.flush()
            os.fsync(stream.fileno())
        new.rename(path)
        sync(self._folder)
        self._num_files += 1
        self._rows = []
        return self._num_files

    def close(self) -> None: ...


def open_parquet(folder: Path, state: Any) -> ParquetSink:
    """`state`: how many files count; what an earlier run wrote beyond them goes."""
    try:
        folder.mkdir(exist_ok=True)
        num_files = state or 0
        found = sorted([*folder.glob("part-*.parquet"), *folder.glob("part-*.new")])
        extra = [path for path in found if path.name >= _name(num_files)]
        if len(found) - len(extra) < num_files:
            message = f"has {len(found) - len(extra)} files; {num_files} were written"
            raise SourceRefused(str(folder), message)
        if state is None and extra:
            raise SourceRefused(str(folder), "has files, and no ledger says which of them count")
        for path in extra:
            path.unlink()
        sync(folder.absolute().parent)
    except OSError as error:
        raise SourceRefused(str(folder), f"cannot be written: {error.strerror}") from error
    schema = pq.read_schema(folder / _name(0)) if num_files else None
    return ParquetSink(folder, num_files, schema)


def _schema_of(rows: list[Any]) -> Any:
    """What has no one type in the first step is a text of JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([_column(name, [row.get(name) for row in rows]) for name in names])


def _column(name: str, values: list[Any]) -> Any:
    try:
        kind = pa.array(values).type
        empty = pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        empty = True
    return pa.field(name, pa.string(), metadata=AS_JSON) if empty else pa.field(name, kind)


def _as_written(row: dict[str, Any], schema: Any) -> dict[str, Any]:
    written = dict(row)
    for one in schema:
        if one.metadata and b"form" in one.metadata and row.get(one.name) is not None:
            written[one.name] = json.dumps(row[one.name], ensure_ascii=False)
    return written


def _check(row: dict[str, Any], schema: Any) -> None:
    """Raises Flaw: it does not fit the columns that the first file has."""
    for name, value in _as_written(row, schema).items():
        if name not in schema.names:
            raise Flaw(Reason.UNKNOWN_FIELD, f"{name[:80]!r} is no column of the first file")
        kind = schema.field(name).type
        try:
            pa.array([value], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            why = f"{name[:80]!r} is {kind} in the first file, not {type(value).__name__}"
            raise Flaw(Reason.WRONG_TYPE, why) from None


def _name(number: int) -> str:
    return f"part-{number:06}.parquet"
