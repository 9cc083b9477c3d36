"""The directory of a ZIP archive whose entries are stored, not compressed.

Owns: finding an entry's bytes in a mapped archive, with every size and place checked.
May not know: what the entries mean.
Read next: `torch_bin.py` (the user).

Compressed or encrypted entries, several disks, entries that overlap or are named twice are
refused: a legacy PyTorch file has none of these, and an archive without compression can not
unpack to more than it is. Source: the published ZIP application note (with its 64-bit records).
"""

from __future__ import annotations

import struct

from firsthand.checks import shown
from firsthand.errors import CheckpointError
from firsthand.values import dataclass
from firsthand.weights.mapped import MappedFile

MAX_ENTRIES = 65_536
MAX_NAME_BYTES = 512

_END = struct.Struct("<IHHHHIIH")
_END64_LOCATOR = struct.Struct("<IIQI")
_END64 = struct.Struct("<IQHHIIQQQQ")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_LOCAL_MARK = 0x04034B50  # "PK" and two bytes, as all the marks
_CENTRAL_MARK = 0x02014B50
_END64_MARK = 0x06064B50
_IS_64 = 0xFFFFFFFF
_ENCRYPTED = 1
_EXTRA_64 = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """`offset` is that of the content, `header` that of the local header before it."""

    name: str
    header: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Directory:
    num_entries: int
    offset: int
    num_bytes: int


def read_entries(file: MappedFile) -> dict[str, Entry]:
    """All entries by name, in the directory's order. Raises CheckpointError."""
    try:
        directory = _find_directory(file)
        entries = _read_directory(file, directory)
    except struct.error as error:
        raise CheckpointError(file.name, "the archive's directory is cut short") from error
    reached = 0
    for entry in sorted(entries.values(), key=lambda e: e.header):
        if entry.header < reached:
            raise CheckpointError(file.name, f"archive entry {shown(entry.name)} overlaps another")
        reached = entry.offset + entry.num_bytes
    if reached > directory.offset:
        raise CheckpointError(file.name, "archive entries run into the directory")
    return entries


def _find_directory(file: MappedFile) -> _Directory:
    place = file.data.rfind(b"PK\x05\x06", max(0, file.num_bytes - _END.size - 0xFFFF))
    if place < 0:
        raise CheckpointError(file.name, "the archive has no end record: is it cut short?")
    _, disk, first_disk, _, number, num_bytes, offset, comment = _unpack(file, _END, place)
    if place + _END.size + comment != file.num_bytes or disk != 0 or first_disk != 0:
        raise CheckpointError(file.name, "the archive's end record does not end the file")
    before = place - _END64_LOCATOR.size
    if before >= 0 and file.data[before : before + 4] == b"PK\x06\x07":
        _, _, end64, _ = _unpack(file, _END64_LOCATOR, before)
        mark, _, _, _, _, _, _, number, num_bytes, offset = _unpack(file, _END64, end64)
        if mark != _END64_MARK or end64 + _END64.size > before:
            raise CheckpointError(file.name, "the archive's 64-bit end record is not there")
        place = end64
    if number > MAX_ENTRIES:
        raise CheckpointError(
            file.name, f"the archive has {number} entries; the limit is {MAX_ENTRIES}"
        )
    if offset + num_bytes > place or number * _CENTRAL.size > num_bytes:
        raise CheckpointError(file.name, "the archive's directory lies outside the file")
    return _Directory(number, offset, num_bytes)


def _read_directory(file: MappedFile, directory: _Directory) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    place, end = directory.offset, directory.offset + directory.num_bytes
    for _ in range(directory.num_entries):
        fields = _unpack(file, _CENTRAL, place)
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        after = place + _CENTRAL.size
        place = after + name_bytes + extra_bytes + comment_bytes
        if fields[0] != _CENTRAL_MARK or place > end:
            raise CheckpointError(file.name, "the archive's directory is damaged")
        raw_name = file.data[after : after + name_bytes]
        extra = file.data[after + name_bytes : after + name_bytes + extra_bytes]
        entry = _read_entry(file, raw_name, fields, extra)
        if entry.name in entries:
            raise CheckpointError(
                file.name, f"archive entry {shown(entry.name)} stands there twice"
            )
        entries[entry.name] = entry
    return entries


def _read_entry(file: MappedFile, raw_name: bytes, fields: tuple[int, ...], extra: bytes) -> Entry:
    name = _decode_name(file, raw_name)
    flags, method = fields[3], fields[4]
    if method != 0 or flags & _ENCRYPTED:
        raise CheckpointError(file.name, f"archive entry {shown(name)} is compressed or encrypted")
    stored, size, header = _sizes(fields[8], fields[9], fields[16], extra)
    if stored != size:
        raise CheckpointError(file.name, f"archive entry {shown(name)} has two different sizes")
    mark, _, _, local_method, _, _, _, _, _, name_bytes, extra_bytes = _unpack(file, _LOCAL, header)
    name_at = header + _LOCAL.size
    same_name = file.data[name_at : name_at + name_bytes] == raw_name
    if mark != _LOCAL_MARK or local_method != 0 or not same_name:
        raise CheckpointError(file.name, f"archive entry {shown(name)} is not where it should be")
    offset = name_at + name_bytes + extra_bytes
    if offset + size > file.num_bytes:
        raise CheckpointError(
            file.name, f"archive entry {shown(name)} runs past the end of the file"
        )
    return Entry(name, header, offset, size)


def _decode_name(file: MappedFile, raw_name: bytes) -> str:
    if not 0 < len(raw_name) <= MAX_NAME_BYTES:
        raise CheckpointError(file.name, f"an archive entry's name is not 1…{MAX_NAME_BYTES} bytes")
    try:
        return raw_name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(file.name, "an archive entry's name is not UTF-8") from error


def _sizes(stored: int, size: int, header: int, extra: bytes) -> tuple[int, int, int]:
    """The 32-bit fields, each replaced from the 64-bit extra field where it is all ones."""
    wide = b""
    while len(extra) >= 4 and not wide:
        field, length = struct.unpack_from("<HH", extra)
        if field == _EXTRA_64:
            wide = extra[4 : 4 + length]
        extra = extra[4 + length :]
    values = []
    for value in (size, stored, header):  # the extra field's own order
        if value == _IS_64:
            (value,) = struct.unpack_from("<Q", wide)
            wide = wide[8:]
        values.append(value)
    return values[1], values[0], values[2]


def _unpack(file: MappedFile, layout: struct.Struct, place: int) -> tuple[int, ...]:
    if place + layout.size > file.num_bytes:
        raise CheckpointError(file.name, "the archive's directory is cut short")
    return layout.unpack_from(file.data, place)
