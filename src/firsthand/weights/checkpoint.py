"""What a checkpoint is to the rest of the house: names, shapes, kinds and raw bytes.

Owns: the interface that the readers of every file form share, and what a model asks of it.
May not know: any one file form, number formats, architectures.
Read next: `safetensors.py`, `gguf.py` (readers), `loading.py` (from bytes to weights).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from firsthand.quant.formats import Format, Weight, WeightSource
from firsthand.values import dataclass


class Matrix(Protocol):
    """What reads a matrix that a file holds in several tensors (`bundles.py`)."""

    @property
    def format(self) -> Format: ...
    def rows(self, start: int, stop: int) -> Weight: ...


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """The rows of another matrix from `first_row` on."""

    whole: Matrix
    first_row: int

    @property
    def format(self) -> Format:
        return self.whole.format

    def rows(self, start: int, stop: int) -> Weight:
        return self.whole.rows(self.first_row + start, self.first_row + stop)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. `shape` has the outermost dimension first: a matrix is (N, K).

    `kind` is the file's own word in capitals: F32, F16, BF16, Q4_1, Q6_K, … With `matrix` the
    tensor stands for several, `kind` is ours, and file and offset are those of the codes.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    num_bytes: int
    file: str
    offset: int  # of the first byte, from the beginning of `file`
    matrix: Matrix | None = None

    @property
    def num_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What the system says of an opened file. Whoever writes to it changes a time, at least."""

    path: str
    device: int
    inode: int
    num_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> FileIdentity:
        return cls(
            path,
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )

    def words(self) -> list[str | int]:
        return [*astuple(self)]


class Checkpoint(Protocol):
    """An opened model: checked whole before the first byte of a tensor is used.

    `config` is config.json's content for a folder, empty for GGUF. `metadata` is the file's own
    key/value table (GGUF keys as they stand; safetensors' `__metadata__`).
    """

    @property
    def path(self) -> str: ...
    @property
    def form(self) -> Literal["safetensors", "gguf"]: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    @property
    def files(self) -> Sequence[FileIdentity]: ...

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes as a read-only view of the memory map."""

    def release(self, name: str) -> None:
        """Give the tensor's resident pages back; reading it again is allowed."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A tensor that holds several slots, by its canonical name. All its dimensions but the last are
    rows, and a slot is those from `first_row` on."""

    name: str
    shape: tuple[int, ...]
    first_row: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor that a model asks for, under its canonical (Hugging Face) name.

    `rope_heads` is set on query and key projections (and their biases): what `GgufLayout` says
    of their rows is undone with it. `is_head`: an error in it goes straight into the logits (the
    output head, and an embedding, which may be tied to it); `int4` leaves it 8 bits. `is_exact`: it
    stays as the file has it, whatever the quantization. `tied_to`: when the checkpoint has no such
    tensor, or has it at the same bytes as the named one, it is that one. `part_of`: it may lie in
    a larger tensor. `offset` is added to the values of a vector, but for those of a GGUF file,
    whose converter has done it.
    """

    name: str
    shape: tuple[int, ...]
    optional: bool = False
    rope_heads: int | None = None
    is_head: bool = False
    tied_to: str | None = None
    is_exact: bool = False
    part_of: Whole | None = None
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class GgufLayout:
    """How the GGUF files of one family differ from our slots.

    `names`: GGUF's name of each tensor and ours, without `.weight` or `.bias`, `{}` for the number
    of the layer. `interleaved`: rows of rotated projections lie as pairs (see `sources.py`).
    """

    names: Mapping[str, str]
    interleaved: bool


class WeightSink(Protocol):
    """Whoever takes the weights (an executor)."""

    def load_weight(self, source: WeightSource) -> None: ...
    def load_vector(self, name: str, values: NDArray[np.float32]) -> None: ...
    def alias(self, name: str, target: str) -> None: ...
