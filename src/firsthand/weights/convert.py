"""Converts legacy PyTorch checkpoints to safetensors, offline; nothing else reads them.

Owns: what a converted folder holds, its division into shards, and that it appears whole or not
at all. Also the writer of safetensors files.
May not know: models, executors, how a legacy file is laid out.
Read next: `torch_bin.py` (the source), `safetensors.py` (the reader of what is written).

One tensor is resident at a time. The folder is written beside its destination under another
name, flushed to the disk, and renamed; a stop at any point leaves at most that other folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from firsthand.errors import CapacityExceeded, CheckpointError, InvalidRequest, ModelNotFound
from firsthand.files import path_inside, read_whole
from firsthand.values import dataclass
from firsthand.weights.folder import INDEX, WEIGHTS, is_companion
from firsthand.weights.safetensors import KIND_BYTES, MAX_HEADER_BYTES
from firsthand.weights.shards import read_index
from firsthand.weights.torch_bin import TorchFile, open_torch

MAX_SHARD_BYTES = 4_000_000_000
MAX_COMPANION_BYTES = 256 * 1024 * 1024

_TORCH_NAME = "pytorch_model.bin"
_TORCH_INDEX_NAME = "pytorch_model.bin.index.json"
_CHUNK_BYTES = 16 * 1024 * 1024

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TensorToWrite:
    """`chunks` yields the tensor's bytes in order, as bytes or views of
    single bytes; it is asked for once, when its turn comes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    chunks: Iterable[bytes | memoryview]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * KIND_BYTES[self.kind]


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
    max_shard_bytes: int = MAX_SHARD_BYTES,
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
        return _write_folder(src, dst, sources, progress, max_shard_bytes)
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
    for shard in index.shards:
        source = open_torch(path_inside(src, shard))
        sources.append(source)
        index.check_shard(shard, [*source.tensors, *source.aliases])


def _write_folder(
    src: Path,
    dst: Path,
    sources: list[TorchFile],
    progress: Progress | None,
    max_shard_bytes: int,
) -> ConvertReport:
    total = sum(t.num_bytes for source in sources for t in source.tensors.values())
    report = counter(progress, total)
    with new_folder(dst) as partial:
        files = write_shards(partial, list(_to_write(sources, report)), max_shard_bytes)
        copied = copy_companions(src if src.is_dir() else src.parent, partial)
    num_tensors = sum(len(source.tensors) for source in sources)
    aliases = tuple(pair for source in sources for pair in source.aliases.items())
    return ConvertReport(str(dst), files, copied, num_tensors, total, aliases)


def check_new(dst: Path) -> None:
    """Raises InvalidRequest where a new folder cannot be made."""
    if os.path.lexists(dst):
        raise InvalidRequest("dst", f"{dst} exists already")


@contextlib.contextmanager
def new_folder(dst: Path) -> Iterator[Path]:
    """A folder beside `dst`, which gets that name when the block ends, and is gone if it fails.

    Raises InvalidRequest where `dst` has appeared meanwhile or cannot be written, CapacityExceeded
    where the disk is full.
    """
    try:
        with _folder_beside(dst) as partial:
            yield partial
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CapacityExceeded(f"{dst}: the disk is full; nothing was kept") from error
        raise InvalidRequest("dst", f"{dst} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _folder_beside(dst: Path) -> Iterator[Path]:
    partial = dst.parent / f".{dst.name}.partial-{secrets.token_hex(4)}"
    partial.mkdir()
    renamed = False
    try:
        yield partial
        _sync_folder(partial)
        if os.path.lexists(dst):
            raise InvalidRequest("dst", f"{dst} has appeared meanwhile")
        partial.rename(dst)
        renamed = True
        _sync_folder(dst.parent)
    except BaseException:
        if renamed:
            with contextlib.suppress(OSError):
                dst.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)
        raise


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


def counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    return count


def _divide(tensors: list[TensorToWrite], max_shard_bytes: int) -> list[list[TensorToWrite]]:
    """In order, as many to a shard as fit; a larger tensor is alone in its shard."""
    shards: list[list[TensorToWrite]] = [[]]
    held = 0
    for tensor in tensors:
        if shards[-1] and held + tensor.num_bytes > max_shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(tensor)
        held += tensor.num_bytes
    return shards


def write_shards(
    folder: Path, to_write: list[TensorToWrite], max_shard_bytes: int = MAX_SHARD_BYTES
) -> tuple[str, ...]:
    """One file, or several and their index; their names."""
    shards = _divide(to_write, max_shard_bytes)
    if len(shards) == 1:
        write_safetensors(folder / WEIGHTS, shards[0])
        return (WEIGHTS,)
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / name, tensors)
        weight_map |= {tensor.name: name for tensor in tensors}
    total = sum(tensor.num_bytes for tensors in shards for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_new(folder / INDEX, [json.dumps(index, indent=1).encode()])
    return (*sorted(set(weight_map.values())), INDEX)


def copy_companions(
    source: Path, folder: Path, but: Collection[str] = frozenset()
) -> tuple[str, ...]:
    """The files that belong beside the weights, as they are; their names."""
    copied = []
    for name in sorted(filter(is_companion, os.listdir(source))):
        if name in but:
            continue
        content = read_whole(path_inside(source, name), MAX_COMPANION_BYTES)
        write_new(folder / name, [content])
        copied.append(name)
    return tuple(copied)


def write_safetensors(path: Path, tensors: Sequence[TensorToWrite]) -> None:
    """Write one new file, on the disk when this returns. The widest kinds come first and the
    header is padded to 8 bytes, so that every tensor is aligned to its kind.

    Raises ValueError for chunks that do not add up to the shape, OSError as the system does.
    """
    ordered = sorted(tensors, key=lambda t: -KIND_BYTES[t.kind])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    reached = 0
    for tensor in ordered:
        end = reached + tensor.num_bytes
        if tensor.name in header:
            raise ValueError(f"{path}: tensor {tensor.name!r} is given twice")
        header[tensor.name] = {
            "dtype": tensor.kind,
            "shape": list(tensor.shape),
            "data_offsets": [reached, end],
        }
        reached = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"{path}: a header of {len(text)} bytes is above {MAX_HEADER_BYTES}")
    write_new(path, _file_chunks(path, text, ordered))


def _file_chunks(
    path: Path, header: bytes, tensors: list[TensorToWrite]
) -> Iterator[bytes | memoryview]:
    yield len(header).to_bytes(8, "little")
    yield header
    for tensor in tensors:
        written = 0
        for chunk in tensor.chunks:
            written += len(chunk)
            yield chunk
        if written != tensor.num_bytes:
            raise ValueError(
                f"{path}: {tensor.name!r} gave {written} bytes, not {tensor.num_bytes}"
            )


def write_new(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """A file that must not exist yet, on the disk when this returns."""
    with open(path, "xb") as stream:
        for chunk in chunks:
            stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
