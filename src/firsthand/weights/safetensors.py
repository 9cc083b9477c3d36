"""Reads safetensors, one file or a folder of shards.

Owns: the safetensors layout and every rule that a file must keep before it is used.
May not know: what tensor names mean, number formats beyond their width, executors.
Read next: `mapped.py` (what is given back), `file_index.py` (the index), `loading.py` (the user).

    8 bytes   N, the length of the header: little-endian, at most 100,000,000
    N bytes   JSON: name → {dtype, shape, data_offsets: [begin, end]}, and "__metadata__"
    the rest  the tensors, row-major, little-endian, without a hole between them

Source: the published format description of safetensors. Limits of our own: 65,536 tensors a
file, 8 dimensions, names of 512 bytes. A tensor of no elements is allowed and has no bytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firsthand.errors import CheckpointError, ModelNotFound
from firsthand.files import parse_json_object, path_inside, read_whole
from firsthand.weights.checkpoint import Checkpoint, TensorInfo
from firsthand.weights.file_index import read_index
from firsthand.weights.folder import CONFIG, INDEX, LEGACY_SUFFIXES, WEIGHTS, safetensors_entry
from firsthand.weights.mapped import MappedCheckpoint, MappedFile
from firsthand.weights.signatures import describe_start

MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 65_536
MAX_RANK = 8
MAX_NAME_BYTES = 512
MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_JSON_ITEMS = 16 * MAX_TENSORS  # a tensor of rank 8 has 14 commas and brackets

KIND_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
}


def open_safetensors(path: Path) -> Checkpoint:
    """Open a folder (config.json and one file, or an index and its shards) or a single file.

    Everything is checked here: names, kinds, shapes, ranges, that shards and index agree. Where
    a folder has an index, only the files it names are read. A single file has no `config`.
    Raises CheckpointError, which names the file and the tensor; ModelNotFound for no such path.
    """
    if not os.path.exists(path):
        raise ModelNotFound(f"{path}: no such file or folder")
    files: list[MappedFile] = []
    try:
        if os.path.isdir(path):
            config, tensors, metadata = _open_folder(path, files)
        else:
            config = {}
            tensors, metadata = _open_file(path, path, files)
    except BaseException:
        for file in files:
            file.close()
        raise
    return MappedCheckpoint(str(path), "safetensors", files, tensors, config, metadata)


def _open_folder(
    folder: Path, files: list[MappedFile]
) -> tuple[dict[str, Any], dict[str, TensorInfo], dict[str, Any]]:
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(str(folder), f"cannot be listed: {error.strerror}") from error
    entry = safetensors_entry(names)
    if entry is None:
        raise CheckpointError(str(folder), _no_weights(names))
    config = _read_config(folder, names)
    if entry == WEIGHTS:
        return (config, *_open_file(folder / WEIGHTS, path_inside(folder, WEIGHTS), files))
    index = read_index(folder, INDEX, ".safetensors")
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, Any] = {}
    for shard in index.files:
        held, notes = _open_file(folder / shard, path_inside(folder, shard), files)
        index.check_file(shard, held)
        tensors |= held
        metadata = notes | metadata  # the first shard's word stands
    return config, tensors, metadata


def _read_config(folder: Path, names: set[str]) -> dict[str, Any]:
    if CONFIG not in names:
        raise CheckpointError(str(folder), f"{CONFIG} is missing")
    content = read_whole(path_inside(folder, CONFIG), MAX_CONFIG_BYTES)
    return parse_json_object(content, str(folder / CONFIG), MAX_JSON_ITEMS)


def _no_weights(names: set[str]) -> str:
    message = f"holds neither {WEIGHTS} nor {INDEX}"
    if any(name.endswith(LEGACY_SUFFIXES) for name in names):
        return f"{message}, but legacy PyTorch files: run `firsthand convert` on the folder first"
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    return f"{message}; open the file {gguf[0]} in it instead" if gguf else message


def _open_file(
    path: Path, target: Path, files: list[MappedFile]
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors and `__metadata__` of one file, which is added to `files` at once."""
    file = MappedFile(target, str(path))
    files.append(file)
    header_bytes = _header_length(file)
    header = file.data[8 : 8 + header_bytes]
    _check_count(file, header.count(b'"data_offsets"'))  # cheap, before any object is made
    table = parse_json_object(header, file.name, MAX_JSON_ITEMS)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(file.name, "__metadata__ is not an object of strings")
    _check_count(file, len(table))
    start = 8 + header_bytes
    tensors = {name: _read_tensor(file, name, entry, start) for name, entry in table.items()}
    _check_layout(file, start, tensors)
    return tensors, metadata


def _check_count(file: MappedFile, num_tensors: int) -> None:
    if num_tensors > MAX_TENSORS:
        raise CheckpointError(file.name, f"{num_tensors} tensors; the limit is {MAX_TENSORS}")


def _header_length(file: MappedFile) -> int:
    head = file.data[:64]
    if len(head) < 9:
        raise CheckpointError(
            file.name,
            f"has {file.num_bytes} bytes, too few for safetensors; {describe_start(head)}",
        )
    length = int.from_bytes(head[:8], "little")
    if head[8:9] != b"{":
        raise CheckpointError(file.name, f"is not safetensors: {describe_start(head)}")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            file.name, f"header length {length} is above the limit of {MAX_HEADER_BYTES} bytes"
        )
    if length > file.num_bytes - 8:
        raise CheckpointError(
            file.name,
            f"header length {length} runs past the end; the file has {file.num_bytes} bytes",
        )
    return length


def _read_tensor(file: MappedFile, name: str, entry: Any, start: int) -> TensorInfo:
    if not 0 < len(name.encode("utf-8")) <= MAX_NAME_BYTES:
        raise CheckpointError(
            file.name, f"name is empty or longer than {MAX_NAME_BYTES} bytes", name[:80]
        )
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(file.name, "must have dtype, shape and data_offsets alone", name)
    kind = entry["dtype"]
    width = KIND_BYTES.get(kind) if isinstance(kind, str) else None
    if width is None:
        raise CheckpointError(file.name, f"dtype {str(kind)[:40]!r} is not known", name)
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _is_counts(shape) or len(shape) > MAX_RANK:
        raise CheckpointError(
            file.name, f"shape is not a list of at most {MAX_RANK} whole numbers", name
        )
    if not _is_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(file.name, "data_offsets is not a pair of whole numbers", name)
    begin, end = offsets
    data_bytes = file.num_bytes - start
    if not begin <= end <= data_bytes:
        raise CheckpointError(
            file.name, f"data_offsets {begin}…{end} leave the data part of {data_bytes} bytes", name
        )
    num_bytes = math.prod(shape) * width
    if end - begin != num_bytes:
        raise CheckpointError(
            file.name, f"has {end - begin} bytes; {kind} of shape {shape} needs {num_bytes}", name
        )
    return TensorInfo(name, tuple(shape), kind, num_bytes, file.name, start + begin)


def _is_counts(value: Any) -> bool:
    """A list of whole numbers ≥ 0. `type` and not `isinstance`: true is no number here."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_layout(file: MappedFile, start: int, tensors: dict[str, TensorInfo]) -> None:
    """Side by side from the first byte of data to the last of the file, in any order of keys."""
    reached = start
    for tensor in _by_place(tensors):
        if tensor.offset != reached:
            word = "overlaps another" if tensor.offset < reached else "leaves a hole before it"
            raise CheckpointError(file.name, f"{word} at data byte {reached - start}", tensor.name)
        reached += tensor.num_bytes
    if reached != file.num_bytes:
        raise CheckpointError(
            file.name, f"{file.num_bytes - reached} bytes lie after the last tensor"
        )


def _by_place(tensors: dict[str, TensorInfo]) -> Iterator[TensorInfo]:
    yield from sorted(tensors.values(), key=lambda t: (t.offset, t.num_bytes))
