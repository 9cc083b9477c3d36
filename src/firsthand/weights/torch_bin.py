"""Reads legacy PyTorch files (.bin, .pt) for conversion, and never executes them.

Owns: from the archive and its program to tensors with bounds checked; which names share bytes.
May not know: folders, indices, the form that is written.
Read next: `torch_opcodes.py` (the program), `stored_zip.py` (the archive), `convert.py` (the user).

What is read: the archive form that PyTorch writes since 1.6, holding a state dict of float32,
float16 or bfloat16 tensors, or a dict whose one key `state_dict` or `model` holds it. Views of a
storage may not add up to more than the storage, so a small file can not become a large one.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import CheckpointError, ModelNotFound, UnsupportedModel
from firsthand.values import dataclass
from firsthand.weights.mapped import MappedFile
from firsthand.weights.signatures import describe_start
from firsthand.weights.stored_zip import Entry, read_entries
from firsthand.weights.torch_opcodes import StorageRef, TensorRef, read_program

MAX_PROGRAM_BYTES = 32 * 1024 * 1024
MAX_NAME_BYTES = 512

_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}
_WRAPPERS = ("state_dict", "model")
_OLD_FORM = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """A checked view: `place` is the storage's first byte in the file, strides count elements."""

    name: str
    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    place: int
    storage_bytes: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _WIDTHS[self.kind]


class TorchFile:
    """The tensors of one file in its own order; `aliases` names a tensor of the very same bytes."""

    def __init__(
        self, file: MappedFile, tensors: dict[str, TorchTensor], aliases: dict[str, str]
    ) -> None:
        self.name = file.name
        self.tensors = MappingProxyType(tensors)
        self.aliases = MappingProxyType(aliases)
        self._file = file

    def read(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, row-major: a view where the file has them so, else a copy."""
        tensor = self.tensors[name]
        width = _WIDTHS[tensor.kind]
        if tensor.num_bytes == 0:
            return np.empty(0, dtype=np.uint8)
        values: NDArray[Any] = np.ndarray(
            tensor.shape,
            dtype=np.dtype(f"<u{width}"),
            buffer=self._file.view(tensor.place, tensor.storage_bytes),
            offset=tensor.first * width,
            strides=tuple(stride * width for stride in tensor.strides),
        )
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    def release(self, name: str) -> None:
        tensor = self.tensors[name]
        self._file.release(tensor.place, tensor.storage_bytes)

    def close(self) -> None:
        self._file.close()


def open_torch(path: Path) -> TorchFile:
    """Open one legacy file; every tensor is checked against its storage here.

    Raises CheckpointError (naming file and tensor, or the opcode or global refused);
    UnsupportedModel for the form before PyTorch 1.6 and other number types; ModelNotFound.
    """
    if not os.path.exists(path):
        raise ModelNotFound(f"{path}: no such file")
    file = MappedFile(path)
    try:
        _check_start(file)
        entries = read_entries(file)
        prefix = _find_prefix(file, entries)
        program = _read_program(file, entries[f"{prefix}data.pkl"])
        state = _state_dict(file, program)
        tensors = {
            name: _check_tensor(file, entries, prefix, name, ref) for name, ref in state.items()
        }
        aliases = _find_aliases(tensors)
        unique = {name: t for name, t in tensors.items() if name not in aliases}
        _check_growth(file, unique)
    except BaseException:
        file.close()
        raise
    return TorchFile(file, unique, aliases)


def _check_start(file: MappedFile) -> None:
    head = file.data[:64]
    if head.startswith(_OLD_FORM):
        raise UnsupportedModel(
            f"{file.name}: is of the form before PyTorch 1.6; save it again with a newer one"
        )
    if not head.startswith(b"PK\x03\x04"):
        raise CheckpointError(file.name, f"is not a PyTorch archive: {describe_start(head)}")


def _find_prefix(file: MappedFile, entries: dict[str, Entry]) -> str:
    """The archive has one top folder, whatever its name; a script archive has code in it."""
    programs = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(programs) != 1:
        raise CheckpointError(file.name, f"the archive has {len(programs)} data.pkl, not one")
    prefix = programs[0].removesuffix("data.pkl")
    if any(name.startswith((f"{prefix}code/", f"{prefix}constants.pkl")) for name in entries):
        raise CheckpointError(file.name, "is a TorchScript program, not a state dict")
    order = entries.get(f"{prefix}byteorder")
    if order is not None and _content(file, order, 8) != b"little":
        raise UnsupportedModel(f"{file.name}: big-endian PyTorch files are not converted")
    return prefix


def _read_program(file: MappedFile, entry: Entry) -> Any:
    if entry.num_bytes > MAX_PROGRAM_BYTES:
        raise CheckpointError(
            file.name, f"data.pkl has {entry.num_bytes} bytes; the limit is {MAX_PROGRAM_BYTES}"
        )
    return read_program(_content(file, entry, MAX_PROGRAM_BYTES), file.name)


def _content(file: MappedFile, entry: Entry, limit_bytes: int) -> bytes:
    return file.data[entry.offset : entry.offset + min(entry.num_bytes, limit_bytes)]


def _state_dict(file: MappedFile, value: Any) -> dict[str, TensorRef]:
    if isinstance(value, dict) and len(value) == 1:
        (key,) = value
        if key in _WRAPPERS and isinstance(value[key], dict):
            value = value[key]
    if not isinstance(value, dict) or not value:
        raise CheckpointError(file.name, "holds no state dict")
    for name, tensor in value.items():
        if not isinstance(tensor, TensorRef):
            raise CheckpointError(file.name, "is no tensor; a state dict has no others", name[:80])
        if not 0 < len(name.encode("utf-8")) <= MAX_NAME_BYTES:
            raise CheckpointError(file.name, f"name is not 1…{MAX_NAME_BYTES} bytes", name[:80])
    return value


def _check_tensor(
    file: MappedFile, entries: dict[str, Entry], prefix: str, name: str, ref: TensorRef
) -> TorchTensor:
    storage = ref.storage
    entry = _storage_entry(file, entries, prefix, name, storage)
    # A stride along a dimension of one element is never used; 0 keeps all arithmetic small.
    strides = tuple(st if n > 1 else 0 for n, st in zip(ref.shape, ref.strides, strict=True))
    count = math.prod(ref.shape)
    last = ref.first + sum((n - 1) * st for n, st in zip(ref.shape, strides, strict=True))
    if count > 0 and (last >= storage.num_elements or count > storage.num_elements):
        raise CheckpointError(
            file.name,
            f"shape {ref.shape} with strides {ref.strides} from element {ref.first} leaves its "
            f"storage of {storage.num_elements} elements",
            name,
        )
    return TorchTensor(
        name, storage.kind, ref.shape, strides, ref.first, entry.offset, entry.num_bytes
    )


def _storage_entry(
    file: MappedFile, entries: dict[str, Entry], prefix: str, name: str, storage: StorageRef
) -> Entry:
    entry = entries.get(f"{prefix}data/{storage.key}") if storage.key.isdecimal() else None
    if entry is None:
        raise CheckpointError(file.name, f"its storage {storage.key[:40]!r} is missing", name)
    needed = storage.num_elements * _WIDTHS[storage.kind]
    if entry.num_bytes != needed:
        raise CheckpointError(
            file.name, f"its storage has {entry.num_bytes} bytes, not the {needed} it says", name
        )
    return entry


def _find_aliases(tensors: dict[str, TorchTensor]) -> dict[str, str]:
    """Names whose bytes are another's. The one kept is the first in the file, but not an output
    head while there is another: readers know how to tie a head to the embedding, not the reverse.
    """
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, t in tensors.items():
        if t.num_bytes > 0:
            groups.setdefault((t.place, t.kind, t.first, t.shape, t.strides), []).append(name)
    aliases: dict[str, str] = {}
    for names in groups.values():
        kept = min(names, key=lambda name: name.startswith(("lm_head.", "output.")))
        aliases |= {name: kept for name in names if name != kept}
    return aliases


def _check_growth(file: MappedFile, tensors: dict[str, TorchTensor]) -> None:
    taken: dict[int, int] = {}
    for tensor in tensors.values():
        taken[tensor.place] = taken.get(tensor.place, 0) + tensor.num_bytes
        if taken[tensor.place] > tensor.storage_bytes:
            raise CheckpointError(file.name, "overlaps other views of its storage", tensor.name)
