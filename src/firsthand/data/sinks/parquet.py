"""Outputs as a folder of Parquet files, one per step: the extra `data`.

Owns: the files, whole or not there.
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

from firsthand.errors import SourceRefused
from firsthand.files import sync


class ParquetSink:
    """Made by `open_parquet`."""

    def __init__(self, folder: Path, num_files: int) -> None:
        self.name = str(folder)
        self._folder = folder
        self._num_files = num_files
        self._rows: list[Any] = []

    def add(self, identity: bytes, line: bytes) -> tuple[int, int]:
        self._rows.append(json.loads(line))
        return self._num_files, len(line)

    def flush(self) -> Any:
        """Under another name first, so that no reader sees a part of a file."""
        if not self._rows:
            return self._num_files
        path = self._folder / _name(self._num_files)
        new = path.with_suffix(".new")
        with new.open("wb") as stream:
            pq.write_table(pa.Table.from_pylist(self._rows), stream)
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
    return ParquetSink(folder, num_files)


def _name(number: int) -> str:
    return f"part-{number:06}.parquet"
