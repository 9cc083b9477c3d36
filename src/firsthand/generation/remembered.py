"""What takes long to compute, kept on disk under the hash of what it follows from.

Owns: the folder, and that only whole content comes back.
May not know: what is computed.
Read next: `text/gguf_vocab.py`, which computes half a million merges.

    FOLDER/HASH    CRC-32 of the rest, then the rest

A disk that is full, read-only or rotten costs the time, nothing else.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from firsthand.errors import CheckpointError
from firsthand.files import read_whole
from firsthand.weights.places import write_atomically

MAX_BYTES = 64 << 20


class Remembered:
    """`Memory` of a folder. Several processes may use it at once: each writes whole files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, inputs: Iterable[bytes], make: Callable[[], bytes]) -> bytes:
        digest = hashlib.sha256()
        for part in inputs:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        path = self._folder / digest.hexdigest()
        with suppress(CheckpointError):
            content = read_whole(path, MAX_BYTES)
            if content[:4] == _sum(content[4:]):
                return content[4:]
        made = make()
        with suppress(OSError):
            write_atomically(path, _sum(made) + made)
        return made


def _sum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")
