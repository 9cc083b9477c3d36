"""Outputs as lines of a file, which is cut to what was committed when a run goes on.

Owns: the file's bytes, and that they are on the disk before anything is said of them.
May not know: the form of a line; engines.
Read next: `../pipeline.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from firsthand.errors import SourceRefused
from firsthand.files import sync


class JsonlSink:
    """Made by `open_jsonl`."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.name = str(path)
        self._descriptor = descriptor
        self._size = size
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def add(self, identity: bytes, line: bytes) -> tuple[int, int]:
        place = self._size + self._waiting_bytes
        self._waiting += (line, b"\n")
        self._waiting_bytes += len(line) + 1
        return place, len(line)

    def flush(self) -> Any:
        content = memoryview(b"".join(self._waiting))
        try:
            while content:
                content = content[os.write(self._descriptor, content) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.name) from error
        self._size += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        return self._size

    def close(self) -> None:
        os.close(self._descriptor)


def open_jsonl(path: Path, state: Any) -> JsonlSink:
    """`state`: the size that counts; None: a new run. Raises SourceRefused."""
    size = state or 0
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SourceRefused(str(path), f"cannot be written: {error.strerror}") from error
    try:
        found = os.fstat(descriptor).st_size
        if found < size:
            raise SourceRefused(str(path), f"has {found} bytes; {size} were written")
        if state is None and found:
            raise SourceRefused(str(path), "is there, and no ledger says what of it counts")
        if found > size:
            os.ftruncate(descriptor, size)
        if state is None:
            sync(path.absolute().parent)  # a new name is durable when its folder is
        os.lseek(descriptor, 0, os.SEEK_END)
        return JsonlSink(path, descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
