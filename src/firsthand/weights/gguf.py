"""Reads GGUF, versions 2 and 3, little-endian.

Owns: the GGUF layout, the numbers of the tensor kinds, and every rule a file must keep to be used.
May not know: what a metadata key or a tensor name means, how a kind is decoded, executors.
Read next: `gguf_metadata.py` (the key/value part), `gguf_parts.py` (a model in several files),
`tensor_names.py` (what the names mean).

    "GGUF"  u32 version  u64 number of tensors  u64 number of keys
    per key:     string key, u32 type, value
    per tensor:  string name, u32 rank, u64 × rank sizes (innermost first), u32 kind, u64 offset
    padding to `general.alignment` (32 where the key is absent), then the data; offsets count
    from there and are multiples of the alignment

Source: the published GGUF specification. Limits: 65,536 tensors, names of 64 bytes (the
specification's own), rank 1…4; those of the metadata stand in `gguf_metadata.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.checks import is_integer
from firsthand.errors import CheckpointError, ModelNotFound, UnsupportedModel
from firsthand.quant import ggml
from firsthand.weights.checkpoint import Checkpoint, TensorInfo
from firsthand.weights.gguf_metadata import Cursor, read_metadata
from firsthand.weights.gguf_parts import MAX_PARTS, parts_there
from firsthand.weights.mapped import MappedCheckpoint, MappedFile
from firsthand.weights.signatures import describe_start

MAX_TENSORS = 65_536
MAX_NAME_BYTES = 64
MAX_RANK = 4
DEFAULT_ALIGNMENT = 32

_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


# What each is made of stands in `quant/ggml.py`.
KINDS = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    30: "BF16",
}

# Known to the format, not computed here: named, so that the message says what the file is.
UNSUPPORTED_KINDS = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file, or all parts of a model of which `path` is one; all of it but the tensors'
    bytes is read and checked here.

    `metadata` has the first file's keys as they stand (see `gguf_metadata.py` for the Python
    types), `path` is the first file's. Raises CheckpointError for a file that breaks the format,
    naming byte, key or tensor, and for parts that are not one model; UnsupportedModel for a sound
    one of another version, byte order or kind; ModelNotFound for no such path.
    """
    if not os.path.exists(path):
        raise ModelNotFound(f"{path}: no such file")
    parts = parts_there(path)
    files: list[MappedFile] = []
    metadata: dict[str, Any] = {}
    tensors: dict[str, TensorInfo] = {}
    num_tensors = 0
    try:
        for index, (name, target) in enumerate(parts):
            file = MappedFile(target, str(name))
            files.append(file)
            keys, held = _open_file(file)
            metadata = metadata or keys
            num_tensors = _check_part(file.name, index, len(parts), keys, metadata)
            _add(tensors, held, file.name)
        if len(parts) > 1 and len(tensors) != num_tensors:
            message = (
                f"all parts have {len(tensors)} tensors, not split.tensors.count {num_tensors}"
            )
            raise CheckpointError(str(parts[0][0]), message)
    except BaseException:
        for file in files:
            file.close()
        raise
    return MappedCheckpoint(str(parts[0][0]), "gguf", files, tensors, {}, metadata)


def _open_file(file: MappedFile) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    cursor = Cursor(file.data, file.name)
    num_tensors, num_keys = _read_head(cursor)
    metadata = read_metadata(cursor, num_keys)
    tensors = _read_tensors(cursor, num_tensors, _alignment(file.name, metadata))
    file.release(0, cursor.position)  # a vocabulary is megabytes, and is in Python's objects now
    return metadata, tensors


def _add(tensors: dict[str, TensorInfo], held: dict[str, TensorInfo], file: str) -> None:
    for name in held.keys() & tensors.keys():
        raise CheckpointError(file, f"stands in {tensors[name].file}, too", name)
    tensors |= held
    if len(tensors) > MAX_TENSORS:
        raise CheckpointError(file, f"{len(tensors)} tensors so far; the limit is {MAX_TENSORS}")


def _check_part(
    file: str, index: int, count: int, metadata: Mapping[str, Any], first: Mapping[str, Any]
) -> int:
    """How many tensors all parts have, which is 0 for a model in one file. `index` and `count` are
    those of the name, `first` the first part's metadata. Raises CheckpointError."""
    said = _number(file, metadata, "split.count")
    if max(said, 1) != count:
        text = f"split.count is {said}, but by its name it is one of {count}"
        if count == 1:
            text = f"is one of {said} parts, but not called NAME-00001-of-{said:05}.gguf"
            text += f"; {MAX_PARTS} are read" if said > MAX_PARTS else ""
        raise CheckpointError(file, text)
    if count == 1:
        return 0
    number = _number(file, metadata, "split.no")
    if number != index:
        raise CheckpointError(file, f"split.no is {number}, but by its name it is {index}")
    num_tensors = _number(file, metadata, "split.tensors.count")
    of_all = first.get("split.tensors.count")
    if num_tensors != of_all:
        text = f"is of another model: of {num_tensors} tensors, and the first part of {of_all}"
        raise CheckpointError(file, text)
    for key, value in metadata.items():
        is_own = key.startswith("split.") or key == "general.alignment"
        if not is_own and (key not in first or not np.array_equal(value, first[key])):
            text = f"is of another model: its {key[:80]} is not that of the first part"
            raise CheckpointError(file, text)
    return num_tensors


def _number(file: str, metadata: Mapping[str, Any], key: str) -> int:
    value = metadata.get(key, 0)
    if not is_integer(value) or value < 0:
        raise CheckpointError(file, f"{key} is not a whole number")
    return int(value)


def _read_head(cursor: Cursor) -> tuple[int, int]:
    if cursor.data[:4] != b"GGUF":
        raise CheckpointError(cursor.file, f"is not GGUF: {describe_start(cursor.data[:64])}")
    cursor.position = 4
    version = cursor.u32("version")
    if version not in (2, 3):
        if version & 0xFFFF == 0 and version != 0:
            raise UnsupportedModel(f"{cursor.file}: big-endian GGUF is not read")
        raise UnsupportedModel(f"{cursor.file}: GGUF version {version} is not read, only 2 and 3")
    num_tensors = cursor.u64("number of tensors")
    num_keys = cursor.u64("number of keys")
    cursor.expect(num_tensors, _LEAST_TENSOR_BYTES, MAX_TENSORS, "tensors")
    return num_tensors, num_keys


def _alignment(file: str, metadata: dict[str, Any]) -> int:
    """Its type has been checked with the other keys."""
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if alignment == 0 or alignment & (alignment - 1):
        raise CheckpointError(file, f"general.alignment is {alignment}, not a power of two")
    return int(alignment)


def _read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    """The table of tensors, with offsets from the beginning of the file."""
    entries: dict[str, tuple[tuple[int, ...], str, int]] = {}
    for index in range(num_tensors):
        name = cursor.text(f"name of tensor {index}", MAX_NAME_BYTES)
        if name in entries:
            raise CheckpointError(cursor.file, "stands in the file twice", name)
        entries[name] = _read_entry(cursor, name)
    start = -(-cursor.position // alignment) * alignment
    tensors = {
        name: _place(cursor, name, shape, kind, start, offset, alignment)
        for name, (shape, kind, offset) in entries.items()
    }
    _check_overlap(cursor.file, tensors)
    return tensors


def _read_entry(cursor: Cursor, name: str) -> tuple[tuple[int, ...], str, int]:
    """Shape (outermost first), kind, and offset from the beginning of the data."""
    where = f"tensor {name!r}"
    rank = cursor.u32(where)
    if not 1 <= rank <= MAX_RANK:
        raise CheckpointError(cursor.file, f"has {rank} dimensions, not 1…{MAX_RANK}", name)
    sizes = [cursor.u64(where) for _ in range(rank)]
    if 0 in sizes:
        raise CheckpointError(cursor.file, f"has a dimension of size 0: {sizes}", name)
    kind_id = cursor.u32(where)
    kind = KINDS.get(kind_id)
    if kind is None:
        known = UNSUPPORTED_KINDS.get(kind_id)
        if known is None:
            raise CheckpointError(cursor.file, f"is of the unknown kind {kind_id}", name)
        raise UnsupportedModel(f"{cursor.file}: {where}: the kind {known} is not supported")
    try:
        ggml.bytes_per_row(kind, sizes[0])
    except ValueError as error:
        raise CheckpointError(cursor.file, str(error), name) from error
    return tuple(reversed(sizes)), kind, cursor.u64(where)


def _place(
    cursor: Cursor,
    name: str,
    shape: tuple[int, ...],
    kind: str,
    start: int,
    offset: int,
    alignment: int,
) -> TensorInfo:
    """Python's integers are exact: no product of sizes can wrap."""
    if offset % alignment:
        raise CheckpointError(cursor.file, f"offset {offset} is not aligned to {alignment}", name)
    num_bytes = math.prod(shape[:-1]) * ggml.bytes_per_row(kind, shape[-1])
    if start + offset + num_bytes > cursor.num_bytes:
        raise CheckpointError(
            cursor.file,
            f"{num_bytes} bytes at {start + offset} run past the end of {cursor.num_bytes} bytes",
            name,
        )
    return TensorInfo(name, shape, kind, num_bytes, cursor.file, start + offset)


def _check_overlap(file: str, tensors: dict[str, TensorInfo]) -> None:
    reached = 0
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.offset < reached:
            raise CheckpointError(file, "overlaps another tensor", tensor.name)
        reached = tensor.offset + tensor.num_bytes
