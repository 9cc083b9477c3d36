"""The folder of packed models: which file is whose, whether it still is, and when one goes.

Owns: the folder's layout, identities of model files, keys.
May not know: how a packed file is laid out (`packed_file.py`), how a weight is packed.
Read next: `packed_file.py`; `generation/packing.py`, which uses both in a load.

    HOME/packed/KEY.packed           KEY: hash of the model's content, the quantization, the packing
    HOME/packed/sources/HASH.json    HASH: of a path; the files there, and their content's hash
    HOME/packed/lock                 held by whoever writes

To hash a model at each start would take longer than to pack it, so its hash is recorded once,
bound to what the system says of each file: device, inode, size, both times. Anything that writes
to a file moves `ctime`, which no program can set back. A file that has only just changed might
change again within the same tick of that clock; it is not recorded yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from firsthand.errors import CapacityExceeded, CheckpointError
from firsthand.files import parse_json_object, read_whole
from firsthand.values import dataclass
from firsthand.weights.checkpoint import FileIdentity
from firsthand.weights.packed_file import PackedFile, PackedHeader, read_header, sha256_of
from firsthand.weights.places import locked, publish, write_atomically

# Raise it when the same file and quantization give other packed values for a reason that
# `fingerprint` does not see: the choice of formats, the order of rows, the decoding of blocks; or
# when the file's own layout changes.
RECIPE: Final = 2
SPARE_DISK_BYTES: Final = 1 << 30  # left free on the disk, always
_TICK_NS = 100_000_000  # several ticks of the coarsest clock that file times come from
_MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackedModel:
    """One packed file. `header` is None where the file is not usable."""

    path: Path
    size_bytes: int
    header: PackedHeader | None

    def is_of(self, path: Path) -> bool:
        """Whether it was made of the model at `path`, or of one inside it."""
        border = os.path.realpath(path)
        source = "" if self.header is None else self.header.source
        return source == border or source.startswith(border + os.sep)

    @property
    def quantization(self) -> str | None:
        return None if self.header is None else self.header.quantization

    def is_intact(self) -> bool:
        """Reads it whole and compares it with the sums that it holds."""
        try:
            with closing(PackedFile(self.path)) as file:
                file.verify()
        except CheckpointError:
            return False
        return True


def wait_until_settled(files: Sequence[FileIdentity]) -> None:
    """Until a change from now on would be seen in the files' times: a moment at most."""
    left_ns = max(file.ctime_ns for file in files) + _TICK_NS - time.time_ns()
    if left_ns > 0:
        time.sleep(min(left_ns, _TICK_NS) / 1e9)


@dataclass(frozen=True, slots=True)
class PackedCache:
    """The folder, for one way of packing: `fingerprint` is the executor's."""

    folder: Path
    fingerprint: str

    def find(self, source: str, files: Sequence[FileIdentity], quantization: str) -> Path | None:
        """Where the packed form lies, if the files' content is on record; it need not be there."""
        content = self._recorded(source, files)
        return None if content is None else self.path_of(content, quantization)

    def path_of(self, content: str, quantization: str) -> Path:
        return self.folder / f"{self.key_of(content, quantization)}.packed"

    def key_of(self, content: str, quantization: str) -> str:
        parts = ["packed", RECIPE, content, quantization, self.fingerprint]
        return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()

    def content(self, source: str, files: Sequence[FileIdentity]) -> str | None:
        """The hash of the files' content, if it is on record."""
        return self._recorded(source, files)

    def record(self, source: str, files: Sequence[FileIdentity], opened_ns: int) -> str:
        """Hash the files, which were opened at `opened_ns`, and record it. Raises CheckpointError
        if they have changed since, or had only just changed then."""
        known = self._recorded(source, files)
        if known is not None:
            return known
        digest = hashlib.sha256()
        for file in files:
            sha256, status = sha256_of(Path(file.path))
            if FileIdentity.of(file.path, status) != file:
                raise CheckpointError(file.path, "changed since it was loaded")
            if opened_ns - file.ctime_ns < _TICK_NS:
                raise CheckpointError(file.path, "had only just changed when it was loaded")
            digest.update(f"{os.path.basename(file.path)} {file.num_bytes} {sha256}\n".encode())
        content = digest.hexdigest()
        record = {"files": [file.words() for file in files], "content": content}
        write_atomically(self._record_path(source), json.dumps(record).encode())
        return content

    @contextmanager
    def writing(self, final: Path, num_bytes: int) -> Iterator[Path | None]:
        """Where to write what shall be `final`; it gets that name at the end, whole. None: another
        process has just put it there. Raises OSError, CapacityExceeded."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lock", lambda: None):
            for left in self.folder.glob(".*.partial"):  # of a writer that was killed
                left.unlink(missing_ok=True)
            if _is_usable(final):
                yield None
                return
            if shutil.disk_usage(self.folder).free < num_bytes + SPARE_DISK_BYTES:
                raise CapacityExceeded(f"{self.folder}: no room for {num_bytes} bytes on this disk")
            partial = self.folder / f".{final.stem[:16]}.{os.urandom(4).hex()}.partial"
            try:
                yield partial
                publish(partial, final)
            finally:
                partial.unlink(missing_ok=True)

    def drop_older(self, kept: Path, source: str, quantization: str) -> None:
        """Remove what the same path was packed as before its content, or the packing, changed."""
        for model in list_packed(self.folder):
            header = model.header
            if model.path == kept or header is None:
                continue
            if (header.source, header.quantization) == (source, quantization):
                model.path.unlink(missing_ok=True)

    def _recorded(self, source: str, files: Sequence[FileIdentity]) -> str | None:
        known, content = _read_record(self._record_path(source))
        return content if known == [file.words() for file in files] else None

    def _record_path(self, source: str) -> Path:
        return _record_path(self.folder, source)


def packed_folder(home: Path) -> Path:
    return home / "packed"


def list_packed(folder: Path) -> list[PackedModel]:
    """Every packed file of the folder, also those that cannot be used any more."""
    found = []
    for path in sorted(folder.glob("*.packed")):
        with suppress(OSError):  # gone in between
            size_bytes = path.stat().st_size
            found.append(PackedModel(path, size_bytes, _header_or_none(path)))
    return found


def packed_of(path: Path, packed: Sequence[PackedModel]) -> list[PackedModel]:
    """Which of a folder's packed files a start with the model at `path` maps: those that were made
    of it, or of the same content in another place."""
    content = {_content_on_record(folder, path) for folder in {one.path.parent for one in packed}}
    return [
        one
        for one in packed
        if one.is_of(path) or (one.header is not None and one.header.content in content)
    ]


def remove_packed(models: Iterable[PackedModel]) -> int:
    """Delete packed files; processes that have them mapped keep them. Returns bytes freed."""
    freed_bytes = 0
    for model in models:
        model.path.unlink(missing_ok=True)
        freed_bytes += model.size_bytes
    return freed_bytes


def _content_on_record(folder: Path, path: Path) -> str | None:
    """The hash of the content of the model at `path`, if its files still are as they were then."""
    known, content = _read_record(_record_path(folder, os.path.realpath(path)))
    with suppress(OSError, TypeError, IndexError):
        now = [FileIdentity.of(words[0], os.stat(words[0])).words() for words in known]
        return content if now == known else None
    return None


def _read_record(path: Path) -> tuple[list[Any], str | None]:
    """The words of the files' identities, and the hash of their content."""
    try:
        record = parse_json_object(read_whole(path, _MAX_RECORD_BYTES), str(path), 65_536)
    except CheckpointError:
        return [], None
    files, content = record.get("files"), record.get("content")
    if not isinstance(files, list) or not isinstance(content, str) or len(content) != 64:
        return [], None
    return files, content


def _record_path(folder: Path, source: str) -> Path:
    return folder / "sources" / f"{hashlib.sha256(os.fsencode(source)).hexdigest()}.json"


def _is_usable(path: Path) -> bool:
    return _header_or_none(path) is not None


def _header_or_none(path: Path) -> PackedHeader | None:
    try:
        return read_header(path)
    except CheckpointError:
        return None
