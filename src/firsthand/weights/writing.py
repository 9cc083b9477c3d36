"""A model's folder, written anew: safetensors, their index, and what belongs beside them.

Owns: the writer of safetensors files, their division, and that a folder appears whole or not at
all.
May not know: models, executors, where the tensors come from.
Read next: `safetensors.py` (the reader of what is written).

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

from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.files import path_inside, read_whole, sync
from firsthand.values import dataclass
from firsthand.weights.folder import INDEX, WEIGHTS, is_companion
from firsthand.weights.safetensors import KIND_BYTES, MAX_HEADER_BYTES

MAX_FILE_BYTES = 4_000_000_000
MAX_COMPANION_BYTES = 256 * 1024 * 1024

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
        sync(partial)
        if os.path.lexists(dst):
            raise InvalidRequest("dst", f"{dst} has appeared meanwhile")
        partial.rename(dst)
        renamed = True
        sync(dst.parent)
    except BaseException:
        if renamed:
            with contextlib.suppress(OSError):
                dst.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)
        raise


def counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    return count


def _divide(tensors: list[TensorToWrite], max_file_bytes: int) -> list[list[TensorToWrite]]:
    """In order, as many to a shard as fit; a larger tensor is alone in its shard."""
    shards: list[list[TensorToWrite]] = [[]]
    held = 0
    for tensor in tensors:
        if shards[-1] and held + tensor.num_bytes > max_file_bytes:
            shards.append([])
            held = 0
        shards[-1].append(tensor)
        held += tensor.num_bytes
    return shards


def write_files(
    folder: Path, to_write: list[TensorToWrite], max_file_bytes: int = MAX_FILE_BYTES
) -> tuple[str, ...]:
    """One file, or several and their index; their names."""
    shards = _divide(to_write, max_file_bytes)
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
