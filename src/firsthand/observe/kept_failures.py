"""Records of failed requests, in files that outlive the server.

Owns: the folder, its bounds, that a file is whole or not there, and that nobody waits for a disk.
May not know: what a record says, why a request failed.
Read next: `recorder.py`; `record_views.py`, whose form is kept.

One file per request, written under another name and renamed, so that a reader and a crash never see
half of one. A thread of its own writes; what it cannot keep up with is dropped, and counted.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object, read_whole

FAILURES = "failed_requests"  # the folder's name in Firsthand's own
MAX_FILES = 200
MAX_FILE_BYTES = 4 << 20  # one that is larger is not read
MAX_TOTAL_BYTES = 64 << 20
MAX_STEPS = 200  # the last ones of a request
MAX_PENDING = 64
_MAX_ITEMS = 1_000_000
_NAME = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{1,128}\.json")


class KeptFailures:
    """`keep` never waits. `close` writes what is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pending: queue.Queue[tuple[str, Mapping[str, Any]] | None] = queue.Queue(MAX_PENDING)
        self._thread: threading.Thread | None = None
        self.num_dropped = 0

    @property
    def has_room(self) -> bool:
        """Whether `keep` would not drop what it is given."""
        return not self._pending.full()

    def keep(self, request_id: str, time_ns: int, told: Mapping[str, Any]) -> None:
        """`time_ns` orders the files; `told` is plain values, which nobody changes any more."""
        try:
            self._pending.put_nowait((f"{time_ns:020}-{request_id}.json", told))
        except queue.Full:
            self.num_dropped += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="failures", daemon=True)
            self._thread.start()

    def close(self, limit_s: float = 2.0) -> None:
        if self._thread is not None:
            with suppress(queue.Full):
                self._pending.put_nowait(None)
            self._thread.join(limit_s)

    def _write(self) -> None:
        while (item := self._pending.get()) is not None:
            try:
                _publish(self.folder, *item)
                _thin_out(self.folder)
            except OSError:  # a full disk costs the file, not the server
                self.num_dropped += 1


def find(folder: Path, request_id: str) -> dict[str, Any] | None:
    """The last failed request of that id; None: there is no file of it that can be read."""
    for path in _files(folder):
        if path.name.partition("-")[2] == f"{request_id}.json":
            return _read(path)
    return None


def failures(folder: Path) -> Iterator[dict[str, Any]]:
    """All of them, the last first."""
    for path in _files(folder):
        found = _read(path)
        if found is not None:
            yield found


def _publish(folder: Path, name: str, told: Mapping[str, Any]) -> None:
    content = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = folder / f".{name}.{os.getpid()}"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        partial.replace(folder / name)
    finally:
        partial.unlink(missing_ok=True)


def _thin_out(folder: Path) -> None:
    total_bytes = 0
    for place, path in enumerate(_files(folder)):
        with suppress(OSError):
            total_bytes += path.stat().st_size
            if place >= MAX_FILES or total_bytes > MAX_TOTAL_BYTES:
                path.unlink()


def _files(folder: Path) -> list[Path]:
    """The last first. Other files in the folder are nobody's."""
    with suppress(OSError):
        return sorted((one for one in folder.iterdir() if _NAME.fullmatch(one.name)), reverse=True)
    return []


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(CheckpointError):
        return parse_json_object(read_whole(path, MAX_FILE_BYTES), str(path), _MAX_ITEMS)
    return None
