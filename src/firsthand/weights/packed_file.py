"""The packed form of a model's matrices, as a file that is mapped and used as it lies there.

Owns: the layout of the file, every rule it must keep to be used, how one is written.
May not know: how a weight is packed (its bytes come from an executor), where the file lies.
Read next: `packed_cache.py` (the folder of these files), `compute/native/executor.py` (the bytes).

    "FHPACKED"  u32 length of the header  SHA-256 of the header  header (JSON)
    then the weights, each at a multiple of 4,096 bytes, in the order of the header; nothing else

A start checks the header whole: its hash, the type of every field, that the weights lie one after
another and end with the file. It also reads everything behind the header and compares the sum of
each section (`Check`), in threads beside the rest of the load: a bit that has rotted would make a
model that answers wrongly without a word. The sum is CRC-32, which finds every run of up to 32
wrong bits and reads twice as fast as a hash: what is guarded against is decay, not a forger, who
could write the header too. Sections are long because a thread waits for the interpreter's lock
after each.
A file is never changed: one that is not right is written anew under the same name.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from firsthand.checks import is_integer
from firsthand.errors import CheckpointError
from firsthand.files import open_regular, parse_json_object
from firsthand.quant.formats import ChannelFormat, FloatFormat, Format, GroupedFormat
from firsthand.values import dataclass
from firsthand.weights.mapped import HUGE_PAGE_BYTES, MappedFile, release_view

MAGIC: Final = b"FHPACKED"
ALIGNMENT: Final = 4096  # a page, so that no weight shares one; kernels ask for 64
MAX_HEADER_BYTES: Final = 32 << 20
MAX_WEIGHTS: Final = 65_536
MAX_TEXT_CHARS: Final = 8_192
_ITEMS_PER_WEIGHT = 24  # commas and brackets of one entry, at most
_SECTION_BYTES = 16 << 20
_PREFIX = struct.Struct("<8sI32s")

Chunks = Iterable[memoryview]


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """One matrix. `kind` is that of the model's file, `num_bytes` the size here."""

    name: str
    shape: tuple[int, int]
    kind: str
    format: Format
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """What a packed file says of itself. `content` is the hash of the model's own files, `source`
    where they lay; `sums` are those of the sections behind the header."""

    key: str
    content: str
    source: str
    quantization: str
    entries: tuple[PackedEntry, ...]
    sums: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.entries)


class PackedFile:
    """An opened file whose header holds. Views keep the map alive after `close`."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for anything but a whole file of this layout."""
        self._file = MappedFile(path)
        self.name = self._file.name
        try:
            self.header, self._start = _read_header(self._file)
        except BaseException:
            self._file.close()
            raise

    @property
    def num_bytes(self) -> int:
        return self._file.num_bytes

    def weights(self) -> Iterable[tuple[PackedEntry, NDArray[np.uint8]]]:
        """Each matrix with its bytes, read-only and aligned, no copy."""
        places = self.places()
        for entry in self.header.entries:
            yield entry, self._file.view(*places[entry.name])

    @property
    def memory(self) -> NDArray[np.uint8]:
        return self._file.view(0, self.num_bytes)

    def places(self) -> dict[str, tuple[int, int]]:
        """Where each matrix lies: offset and bytes."""
        found, offset = {}, self._start
        for entry in self.header.entries:
            found[entry.name] = (offset, entry.num_bytes)
            offset += _aligned(entry.num_bytes)
        return found

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """The same file, open. Raises CheckpointError if another has taken its name."""
        descriptor, _ = open_regular(Path(self.name))
        try:
            status, opened = os.fstat(descriptor), self._file.identity
            if (status.st_dev, status.st_ino) != (opened.device, opened.inode):
                raise CheckpointError(self.name, "was replaced while it was opened")
            yield descriptor
        finally:
            os.close(descriptor)

    def check(self, num_threads: int, *, release: bool = False) -> Check:
        """Begin to read everything; `release`: each thread holds a section at a time."""
        if not release:
            self._file.use_huge_pages()
        starts = range(self._start, self.num_bytes, _SECTION_BYTES)
        sections = [
            (self._file.view(start, min(_SECTION_BYTES, self.num_bytes - start)), crc32)
            for start, crc32 in zip(starts, self.header.sums, strict=True)
        ]
        return Check(self.name, sections, num_threads, release)

    def verify(self) -> None:
        """Read everything now. Raises CheckpointError."""
        self.check(1).wait()

    def close(self) -> None:
        self._file.close()


class Check:
    """Threads that compare every section with its sum, until one differs. Each takes the next."""

    def __init__(
        self,
        name: str,
        sections: list[tuple[NDArray[np.uint8], int]],
        num_threads: int,
        release: bool,
    ) -> None:
        self._name = name
        self._left = sections
        self._is_wrong = False
        self._release = release
        self._threads = [
            threading.Thread(target=self._run, name="pack-check", daemon=True)
            for _ in range(min(num_threads, len(sections)))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Raises CheckpointError where a section differs."""
        for thread in self._threads:
            thread.join()
        if self._is_wrong:
            raise CheckpointError(self._name, "the packed weights differ from their sums")

    def _run(self) -> None:
        while not self._is_wrong:
            try:
                section, crc32 = self._left.pop()
            except IndexError:
                return
            if zlib.crc32(section.data) != crc32:
                self._is_wrong = True
            if self._release:
                release_view(section)


class _Sums:
    """The sums of the sections of what is added, piece by piece."""

    def __init__(self) -> None:
        self._done: list[int] = []
        self._crc32 = 0
        self._left = _SECTION_BYTES

    def add(self, piece: memoryview) -> None:
        while len(piece) >= self._left:
            self._done.append(zlib.crc32(piece[: self._left], self._crc32))
            piece = piece[self._left :]
            self._crc32, self._left = 0, _SECTION_BYTES
        self._crc32 = zlib.crc32(piece, self._crc32)
        self._left -= len(piece)

    def all(self) -> tuple[int, ...]:
        return (*self._done, *([self._crc32] if self._left < _SECTION_BYTES else ()))


def read_header(path: Path) -> PackedHeader:
    """The header alone, checked as for use. Raises CheckpointError."""
    file = PackedFile(path)
    file.close()
    return file.header


def write_packed(
    path: Path,
    key: str,
    content: str,
    source: str,
    quantization: str,
    weights: Sequence[tuple[PackedEntry, Callable[[], Chunks]]],
) -> None:
    """Write a whole file at `path`, which must not exist. Each weight's chunks are asked for when
    they are due, and must come to its `num_bytes`. Raises OSError."""
    entries = tuple(entry for entry, _ in weights)
    num_sections = _num_sections(entries)
    # Sums are equally long, so the header's size is known before they are.
    empty = PackedHeader(key, content, source, quantization, entries, (0,) * num_sections)
    start = _aligned(len(_head(empty)))
    sums = _Sums()

    def body() -> Iterator[memoryview]:
        yield memoryview(bytes(start))
        for entry, chunks in weights:
            size, written = _aligned(entry.num_bytes), 0
            for chunk in (*chunks(), memoryview(bytes(size - entry.num_bytes))):
                sums.add(chunk)
                yield chunk
                written += chunk.nbytes
            if written != size:
                raise ValueError(f"{entry.name}: {written} bytes, not {entry.num_bytes}")

    with open(path, "xb") as file:
        for page in huge_pages(body()):
            file.write(page)
        file.seek(0)
        file.write(_head(replace(empty, sums=sums.all())))


def huge_pages(chunks: Iterable[memoryview]) -> Iterator[bytes]:
    """The same bytes, cut where the system may keep them in one page of memory each."""
    held = bytearray()
    for chunk in chunks:
        for start in range(0, len(chunk), HUGE_PAGE_BYTES):
            held += chunk[start : start + HUGE_PAGE_BYTES]
            if len(held) >= HUGE_PAGE_BYTES:
                yield bytes(held[:HUGE_PAGE_BYTES])
                del held[:HUGE_PAGE_BYTES]
    yield bytes(held)


def _head(header: PackedHeader) -> bytes:
    fields = {
        "key": header.key,
        "content": header.content,
        "source": header.source,
        "quantization": header.quantization,
        "crc32": "".join(f"{crc32:08x}" for crc32 in header.sums),
        "weights": [
            {
                "name": entry.name,
                "shape": entry.shape,
                "kind": entry.kind,
                "format": _format_fields(entry.format),
                "num_bytes": entry.num_bytes,
            }
            for entry in header.entries
        ],
    }
    text = json.dumps(fields, separators=(",", ":")).encode("ascii")
    return _PREFIX.pack(MAGIC, len(text), hashlib.sha256(text).digest()) + text


def _read_header(file: MappedFile) -> tuple[PackedHeader, int]:
    """The header, and where the first weight begins."""
    if file.num_bytes < _PREFIX.size:
        raise CheckpointError(file.name, "is too short for a packed file")
    magic, length, digest = _PREFIX.unpack(file.data[: _PREFIX.size])
    stop = _PREFIX.size + length
    if magic != MAGIC:
        raise CheckpointError(file.name, "is not a packed file")
    if length > MAX_HEADER_BYTES or stop > file.num_bytes:
        raise CheckpointError(file.name, f"a header of {length} bytes does not fit")
    text = file.data[_PREFIX.size : stop]
    if hashlib.sha256(text).digest() != digest:
        raise CheckpointError(file.name, "the header differs from its hash")
    header = _header_of(parse_json_object(text, file.name, MAX_WEIGHTS * _ITEMS_PER_WEIGHT), file)
    start = _aligned(stop)
    expected = start + sum(_aligned(entry.num_bytes) for entry in header.entries)
    if expected != file.num_bytes:
        raise CheckpointError(file.name, f"has {file.num_bytes} bytes, not {expected}")
    return header, start


def _header_of(fields: Mapping[str, Any], file: MappedFile) -> PackedHeader:
    """Every field by its type and range; a field too many or too few is refused."""
    texts = ("key", "content", "source", "quantization")
    try:
        if fields.keys() != {*texts, "weights", "crc32"} or not isinstance(fields["weights"], list):
            raise ValueError("fields")
        if len(fields["weights"]) > MAX_WEIGHTS:
            raise ValueError("number of weights")
        entries = tuple(_entry_of(entry) for entry in fields["weights"])
        if len({entry.name for entry in entries}) != len(entries):
            raise ValueError("a weight stands there twice")
        values = {name: _text(fields[name]) for name in texts}
        sums = _sums_of(fields["crc32"], _num_sections(entries))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(file.name, f"a field of the header is wrong: {error}") from None
    return PackedHeader(**values, entries=entries, sums=sums)


def _entry_of(fields: Mapping[str, Any]) -> PackedEntry:
    if fields.keys() != {"name", "shape", "kind", "format", "num_bytes"}:
        raise ValueError("fields of a weight")
    n, k = fields["shape"]
    return PackedEntry(
        name=_text(fields["name"]),
        shape=(_count(n), _count(k)),
        kind=_text(fields["kind"]),
        format=_format_of(fields["format"]),
        num_bytes=_count(fields["num_bytes"]),
    )


def _format_fields(format: Format) -> dict[str, Any]:
    match format:
        case FloatFormat():
            return {"of": "float", **asdict(format)}
        case ChannelFormat():
            return {"of": "channel"}
        case GroupedFormat():
            return {"of": "grouped", **asdict(format)}


def _format_of(fields: Mapping[str, Any]) -> Format:
    match fields:
        case {"of": "float", "dtype": "float32" | "float16" | "bfloat16" as dtype}:
            return FloatFormat(dtype)
        case {"of": "channel"}:
            return ChannelFormat()
        case {
            "of": "grouped",
            "bits": 4 | 8 as bits,
            "group": int(group),
            "scale_dtype": "float16" | "float32" as scale_dtype,
            "has_minimum": bool(has_minimum),
            "zero": int(zero),
        } if 1 <= group <= 256 and abs(zero) <= 128:
            return GroupedFormat(bits, group, scale_dtype, has_minimum, zero)
    raise ValueError("format of a weight")


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_CHARS:
        raise ValueError("a text")
    return value


def _count(value: object) -> int:
    if not is_integer(value) or not 0 < value < 1 << 48:
        raise ValueError("a number")
    return value


def _sums_of(value: object, count: int) -> tuple[int, ...]:
    if not isinstance(value, str) or len(value) != 8 * count:
        raise ValueError("sums")
    return struct.unpack(f">{count}I", bytes.fromhex(value))


def _num_sections(entries: Iterable[PackedEntry]) -> int:
    return -(-sum(_aligned(entry.num_bytes) for entry in entries) // _SECTION_BYTES)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def sha256_of(path: Path) -> tuple[str, os.stat_result]:
    """A regular file's hash, and the status of what was read after the last byte."""
    descriptor, _ = open_regular(path)
    digest = hashlib.sha256()
    with open(descriptor, "rb", buffering=0) as file:
        while block := file.read(HUGE_PAGE_BYTES):
            digest.update(block)
        return digest.hexdigest(), os.fstat(file.fileno())
