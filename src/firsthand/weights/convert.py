"""Converts legacy PyTorch checkpoints to safetensors, offline; nothing else reads them.

Owns: what a converted folder holds.
May not know: models, executors, how a legacy file is laid out.
Read next: `torch_bin.py` (the source), `writing.py` (the folder).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from firsthand.errors import CheckpointError, ModelNotFound
from firsthand.files import path_inside
from firsthand.values import dataclass
from firsthand.weights.file_index import read_index
from firsthand.weights.torch_bin import TorchFile, open_torch
from firsthand.weights.writing import (
    MAX_FILE_BYTES,
    Progress,
    TensorToWrite,
    check_new,
    copy_companions,
    counter,
    new_folder,
    write_files,
)

_TORCH_NAME = "pytorch_model.bin"
_TORCH_INDEX_NAME = "pytorch_model.bin.index.json"
_CHUNK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What was written. `aliases`: names left out, each with the tensor that has its bytes."""

    destination: str
    files: tuple[str, ...]
    copied: tuple[str, ...]
    num_tensors: int
    num_bytes: int
    aliases: tuple[tuple[str, str], ...]


def convert(
    src: Path,
    dst: Path,
    *,
    progress: Progress | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> ConvertReport:
    """Convert a legacy folder, or one file, into the new folder `dst`.

    The configuration and tokenizer files beside the weights are copied as they are. `progress`
    is told bytes done and bytes in all, after each chunk. Raises CheckpointError for a source
    that is refused, InvalidRequest for a `dst` that exists or cannot be written,
    CapacityExceeded for a full disk; then nothing is left at `dst`.
    """
    check_new(dst)
    if not os.path.exists(src):
        raise ModelNotFound(f"{src}: no such file or folder")
    sources: list[TorchFile] = []
    try:
        _open_sources(src, sources)
        return _write_folder(src, dst, sources, progress, max_file_bytes)
    finally:
        for source in sources:
            source.close()


def _open_sources(src: Path, sources: list[TorchFile]) -> None:
    """One file, `pytorch_model.bin`, or the index and its shards. No name in two files."""
    if not src.is_dir():
        sources.append(open_torch(src))
        return
    index_path = src / _TORCH_INDEX_NAME
    if not index_path.exists():
        if not (src / _TORCH_NAME).exists():
            raise CheckpointError(str(src), f"holds no {_TORCH_NAME} and no index of its shards")
        sources.append(open_torch(path_inside(src, _TORCH_NAME)))
        return
    index = read_index(src, _TORCH_INDEX_NAME, ".bin")
    for shard in index.files:
        source = open_torch(path_inside(src, shard))
        sources.append(source)
        index.check_file(shard, [*source.tensors, *source.aliases])


def _write_folder(
    src: Path,
    dst: Path,
    sources: list[TorchFile],
    progress: Progress | None,
    max_file_bytes: int,
) -> ConvertReport:
    total = sum(t.num_bytes for source in sources for t in source.tensors.values())
    report = counter(progress, total)
    with new_folder(dst) as partial:
        files = write_files(partial, list(_to_write(sources, report)), max_file_bytes)
        copied = copy_companions(src if src.is_dir() else src.parent, partial)
    num_tensors = sum(len(source.tensors) for source in sources)
    aliases = tuple(pair for source in sources for pair in source.aliases.items())
    return ConvertReport(str(dst), files, copied, num_tensors, total, aliases)


def _to_write(sources: list[TorchFile], report: Callable[[int], None]) -> Iterator[TensorToWrite]:
    for source in sources:
        for t in source.tensors.values():
            yield TensorToWrite(t.name, t.kind, t.shape, _chunks(source, t.name, report))


def _chunks(source: TorchFile, name: str, report: Callable[[int], None]) -> Iterator[memoryview]:
    content = source.read(name)
    for start in range(0, len(content), _CHUNK_BYTES):
        chunk = content[start : start + _CHUNK_BYTES]
        yield chunk.data
        report(len(chunk))
    source.release(name)
