"""The SHA-256 of files, remembered for as long as the system says that they are the same.

Owns: where sums are kept, when one still counts.
May not know: what a file is, or what its sum should be.
Read next: `verifying.py`, which compares them; `packed_cache.py`, which keeps whole models so.

    FOLDER/HASH.json    HASH: of a path; the file's identity, and its content's hash

A sum is bound to device, inode, size and both times of its file; no program can set `ctime` back. A
file that has only just changed might change again within the same tick of that clock, so its sum
is not kept yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from firsthand.errors import CheckpointError
from firsthand.files import open_regular, parse_json_object, read_whole
from firsthand.values import dataclass
from firsthand.weights.checkpoint import FileIdentity
from firsthand.weights.places import write_atomically

TICK_NS: Final = 100_000_000  # several ticks of the coarsest clock that file times come from
_BLOCK_BYTES: Final = 1 << 20
_MAX_RECORD_BYTES: Final = 1 << 16


class Stopped(Exception):
    """Nobody waits for the sum any more."""


@dataclass(frozen=True, slots=True)
class Sums:
    """`folder` None: nothing is kept."""

    folder: Path | None

    def of(self, path: Path, stopped: Callable[[], bool] = lambda: False) -> str:
        """Raises CheckpointError for what is no regular file, or changes while it is read."""
        where = os.path.realpath(path)
        begun_ns = time.time_ns()
        descriptor, _ = open_regular(Path(where))
        with open(descriptor, "rb", buffering=0) as file:
            before = FileIdentity.of(where, os.fstat(descriptor))
            known = self._known(before)
            if known is not None:
                return known
            digest = hashlib.sha256()
            while block := file.read(_BLOCK_BYTES):
                if stopped():
                    raise Stopped
                digest.update(block)
            if FileIdentity.of(where, os.fstat(descriptor)) != before:
                raise CheckpointError(str(path), "changed while it was read")
        self._keep(before, digest.hexdigest(), begun_ns)
        return digest.hexdigest()

    def _known(self, file: FileIdentity) -> str | None:
        record = self._path(file)
        if record is None:
            return None
        try:
            found = parse_json_object(read_whole(record, _MAX_RECORD_BYTES), str(record), 64)
        except CheckpointError:
            return None
        sha256 = found.get("sha256")
        same = found.get("file") == file.words() and isinstance(sha256, str) and len(sha256) == 64
        return sha256 if same else None

    def _keep(self, file: FileIdentity, sha256: str, begun_ns: int) -> None:
        record = self._path(file)
        if record is not None and begun_ns - file.ctime_ns >= TICK_NS:
            with suppress(OSError):
                content = {"file": file.words(), "sha256": sha256}
                write_atomically(record, json.dumps(content).encode())

    def _path(self, file: FileIdentity) -> Path | None:
        if self.folder is None:
            return None
        name = hashlib.sha256(os.fsencode(file.path)).hexdigest()
        return self.folder / f"{name}.json"
