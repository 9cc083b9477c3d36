"""Builders of checkpoint files, sound ones and hostile ones, byte by byte.

Owns: how a test lays out a file. They share nothing with the readers, so that a constant that
is wrong in both can not hide. May not know: the readers. Read next: `test_gguf.py`.
"""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

# GGUF value types.
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
_LAYOUTS = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL), "BbHhIif?", strict=True))
_LAYOUTS |= {U64: "Q", I64: "q", F64: "d"}


def entry(dtype: str, shape: list[int], begin: int, end: int) -> Entry:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(header: dict[str, Any] | bytes, data: bytes = b"", length: int = -1) -> bytes:
    """`length` ≥ 0 lies about the header's length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length < 0 else length).to_bytes(8, "little") + text + data


def model_folder(folder: Path, shards: dict[str, bytes], weight_map: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for name, content in shards.items():
        (folder / name).write_bytes(content)
    if weight_map:
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def gguf_string(text: str | bytes) -> bytes:
    content = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(content)) + content


def gguf_value(kind: int, value: Any) -> bytes:
    """An array is (kind of element, list)."""
    if kind == STR:
        return gguf_string(value)
    if kind == ARR:
        inner, items = value
        head = struct.pack("<IQ", inner, len(items))
        return head + b"".join(gguf_value(inner, item) for item in items)
    return struct.pack("<" + _LAYOUTS[kind], value)


def gguf_key(key: str | bytes, kind: int, value: Any) -> bytes:
    return gguf_string(key) + struct.pack("<I", kind) + gguf_value(kind, value)


def gguf_tensor(name: str | bytes, sizes: list[int], kind: int, offset: int) -> bytes:
    """`sizes` in the file's order: the innermost first."""
    rank = struct.pack("<I", len(sizes))
    packed = b"".join(struct.pack("<Q", size) for size in sizes)
    return gguf_string(name) + rank + packed + struct.pack("<IQ", kind, offset)


def gguf(
    keys: list[bytes],
    tensors: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    num_tensors: int | None = None,
    num_keys: int | None = None,
    alignment: int = 32,
    magic: bytes = b"GGUF",
) -> bytes:
    """The counts can be made to lie; `alignment` pads only, it writes no key."""
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment if data else 0) + data


def stored_zip(
    path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def torch_archive(path: Path, program: bytes, storages: dict[str, bytes] | None = None) -> Path:
    """A file in the archive form; `program` becomes data.pkl."""
    entries = {"archive/data.pkl": program, "archive/version": b"3\n"}
    entries |= {f"archive/data/{key}": content for key, content in (storages or {}).items()}
    return stored_zip(path, entries)


# The opcodes below are written by hand, so that a test can lie in each of their arguments.


def pk_text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def pk_int(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def pk_ints(values: list[int]) -> bytes:
    return b"(" + b"".join(pk_int(value) for value in values) + b"t"


def pk_storage(key: str = "0", count: int = 6, kind: str = "FloatStorage") -> bytes:
    head = b"(" + pk_text("storage") + f"ctorch\n{kind}\n".encode()
    return head + pk_text(key) + pk_text("cpu") + pk_int(count) + b"tQ"


def pk_tensor(
    shape: list[int], strides: list[int], first: int = 0, storage: bytes | None = None
) -> bytes:
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + (storage or pk_storage())
        + pk_int(first)
        + pk_ints(shape)
        + pk_ints(strides)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def pk_dict(**values: bytes) -> bytes:
    items = b"".join(pk_text(name) + value for name, value in values.items())
    return b"}(" + items + b"u"


def program(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."
