"""The key/value part of a GGUF file.

Owns: a cursor that never reads or allocates past what is left, and the thirteen value types.
May not know: tensors, what a key means (but `general.alignment`, which the layout needs).
Read next: `gguf.py` (the user).

Python types of the values: int, float, bool, str; an array of numbers or booleans is a read-only
NumPy array of the file's own type; an array of strings or of arrays is a list. Strings must be
UTF-8, also in arrays: a vocabulary's odd bytes are spelt in characters by its own convention.

Limits, each checked before anything is allocated: 65,536 keys, keys of 65,535 bytes, arrays 4
deep, and 2,097,152 strings in arrays per file (eight times a vocabulary of 262,144), where an
array within an array counts as 16.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import CheckpointError

MAX_KEYS = 65_536
MAX_KEY_BYTES = 65_535
MAX_DEPTH = 4
MAX_OBJECTS = 2_097_152

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_LEAST_KEY_BYTES = 8 + 1 + 4 + 1
_LEAST_ARRAY_BYTES = 4 + 8
_COST_OF_ARRAY = 16


class Cursor:
    """A place in the mapped bytes; every step is checked against what is left."""

    def __init__(self, data: mmap.mmap | bytes, file: str) -> None:
        self.data = data
        self.file = file
        self.num_bytes = len(data)
        self.position = 0
        self.objects_left = MAX_OBJECTS

    def take(self, num_bytes: int, what: str) -> bytes:
        start = self.position
        if num_bytes > self.num_bytes - start:
            raise self.fault(f"{what}: {num_bytes} bytes, but {self.num_bytes - start} are left")
        self.position = start + num_bytes
        return self.data[start : self.position]

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def text(self, what: str, limit_bytes: int) -> str:
        """A name: filled and bounded."""
        length = self.u64(what)
        if not 0 < length <= limit_bytes:
            raise self.fault(f"{what}: {length} bytes long, not 1…{limit_bytes}")
        return self.decoded(self.take(length, what), what)

    def decoded(self, content: bytes, what: str) -> str:
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"{what}: is not valid UTF-8") from error

    def expect(self, count: int, least_bytes: int, limit: int, what: str) -> None:
        """Refuse a count that the rest of the file cannot hold, or that is above the limit."""
        if count > limit:
            raise self.fault(f"{count} {what}; the limit is {limit}")
        if count * least_bytes > self.num_bytes - self.position:
            raise self.fault(f"{count} {what}, but {self.num_bytes - self.position} bytes are left")

    def fault(self, message: str) -> CheckpointError:
        return CheckpointError(self.file, f"at byte {self.position}: {message}")


def read_metadata(cursor: Cursor, num_keys: int) -> dict[str, Any]:
    """All keys with their values. Raises CheckpointError naming the byte and the key."""
    cursor.expect(num_keys, _LEAST_KEY_BYTES, MAX_KEYS, "keys")
    found: dict[str, Any] = {}
    for index in range(num_keys):
        key = cursor.text(f"name of key {index}", MAX_KEY_BYTES)
        where = f"key {key[:80]!r}"
        if key in found:
            raise cursor.fault(f"{where} stands in the file twice")
        kind = cursor.u32(where)
        if key == "general.alignment" and kind != _UINT32:
            raise cursor.fault(f"{where}: is of type {kind}, not uint32")
        found[key] = _read_value(cursor, kind, where)
    return found


def _read_value(cursor: Cursor, kind: int, where: str) -> Any:
    if kind == _ARRAY:
        return _read_array(cursor, where, 1)
    if kind == _STRING:
        return cursor.decoded(cursor.take(cursor.u64(where), where), where)
    return _read_numbers(cursor, kind, 1, where)[0].item()


def _read_array(cursor: Cursor, where: str, depth: int) -> Any:
    kind = cursor.u32(where)
    count = cursor.u64(where)
    if kind == _STRING:
        return _read_strings(cursor, count, where)
    if kind != _ARRAY:
        return _read_numbers(cursor, kind, count, where)
    if depth == MAX_DEPTH:
        raise cursor.fault(f"{where}: arrays are nested more than {MAX_DEPTH} deep")
    cursor.expect(
        count, _LEAST_ARRAY_BYTES, cursor.objects_left // _COST_OF_ARRAY, f"arrays in {where}"
    )
    cursor.objects_left -= count * _COST_OF_ARRAY
    return [_read_array(cursor, where, depth + 1) for _ in range(count)]


def _read_numbers(cursor: Cursor, kind: int, count: int, where: str) -> NDArray[Any]:
    code = _NUMBERS.get(kind)
    if code is None:
        raise cursor.fault(f"{where}: unknown value type {kind}")
    dtype = np.dtype(code)
    content = cursor.take(count * dtype.itemsize, where)
    values = np.frombuffer(content or bytes(dtype.itemsize), dtype=dtype)[:count]
    if kind != _BOOL:
        return values
    if count and values.max() > 1:
        raise cursor.fault(f"{where}: a boolean is neither 0 nor 1")
    return values.view(np.bool_)


def _read_strings(cursor: Cursor, count: int, where: str) -> list[str]:
    """`count` strings at about two million a second: the loop keeps its place in locals."""
    cursor.expect(count, 8, cursor.objects_left, f"strings in {where}")
    cursor.objects_left -= count
    data, size, position = cursor.data, cursor.num_bytes, cursor.position
    strings: list[str] = []
    append, length_at = strings.append, _U64.unpack_from
    try:
        for _ in range(count):
            start = position + 8
            position = start + length_at(data, position)[0]
            if position > size:
                raise cursor.fault(f"{where}: string {len(strings)} runs past the end")
            append(data[start:position].decode("utf-8"))
    except UnicodeDecodeError as error:
        raise cursor.fault(f"{where}: string {len(strings)} is not valid UTF-8") from error
    except struct.error as error:
        raise cursor.fault(f"{where}: string {len(strings)} runs past the end") from error
    cursor.position = position
    return strings
