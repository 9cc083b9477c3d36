"""Tensors that lie in a larger one: rows of it, read where they are.

Owns: which slots are cut out of which tensor of a file, and the cut.
May not know: number formats, architectures, executors.
Read next: `loading.py`, the user.

A joined projection (queries, keys and values in one matrix) and stacked experts (E, N, K) are the
same thing: whole rows one after another. So a part is a tensor like any other, over a slice of the
same memory map; nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from firsthand.values import dataclass
from firsthand.weights.checkpoint import (
    Checkpoint,
    FileIdentity,
    GgufLayout,
    MatrixRows,
    Slot,
    TensorInfo,
)
from firsthand.weights.tensor_names import canonical_names


@dataclass(frozen=True, slots=True)
class Part:
    """A run of bytes of the file's tensor `whole`."""

    whole: str
    start: int
    info: TensorInfo


class CheckpointOfParts:
    """`Checkpoint` in which the parts stand in the place of their wholes."""

    def __init__(self, whole: Checkpoint, parts: Mapping[str, Part]) -> None:
        self._whole = whole
        self._parts = parts
        taken = {part.whole for part in parts.values()}
        self.tensors: Mapping[str, TensorInfo] = {
            **{name: info for name, info in whole.tensors.items() if name not in taken},
            **{name: part.info for name, part in parts.items()},
        }

    @property
    def path(self) -> str:
        return self._whole.path

    @property
    def form(self) -> Literal["safetensors", "gguf"]:
        return self._whole.form

    @property
    def config(self) -> Mapping[str, Any]:
        return self._whole.config

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._whole.metadata

    @property
    def files(self) -> Sequence[FileIdentity]:
        return self._whole.files

    def raw(self, name: str) -> NDArray[np.uint8]:
        part = self._parts.get(name)
        if part is None:
            return self._whole.raw(name)
        return self._whole.raw(part.whole)[part.start : part.start + part.info.num_bytes]

    def release(self, name: str) -> None:
        """The pages of a whole go with each of its parts; reading them again is allowed."""
        part = self._parts.get(name)
        self._whole.release(name if part is None else part.whole)

    def close(self) -> None:
        self._whole.close()


def with_parts(
    checkpoint: Checkpoint, slots: Sequence[Slot], layout: GgufLayout | None
) -> Checkpoint:
    """The checkpoint, with every slot cut out that has no tensor of its own, but a whole of the
    right shape. What does not fit stays as it is, and is refused where slots are matched."""
    names = {ours: name for name, ours in canonical_names(checkpoint.tensors, layout).items()}
    parts: dict[str, Part] = {}
    for slot in slots:
        if slot.part_of is None or slot.name in names or slot.part_of.name not in names:
            continue
        whole = checkpoint.tensors[names[slot.part_of.name]]
        num_rows = math.prod(whole.shape[:-1])
        # Of a matrix in several tensors bytes are only counted: its rows are another's to read.
        is_cut = whole.matrix is not None or whole.num_bytes % num_rows == 0
        if whole.shape != slot.part_of.shape or not is_cut:
            continue
        row_bytes = whole.num_bytes // num_rows
        is_bare = slot.part_of.name == f"model.{whole.name}"  # as `canonical_names` has it
        name = slot.name.removeprefix("model.") if is_bare else slot.name
        start = slot.part_of.first_row * row_bytes
        info = replace(
            whole,
            name=name,
            shape=slot.shape,
            num_bytes=slot.shape[0] * row_bytes,
            offset=whole.offset + start,
            matrix=whole.matrix and MatrixRows(whole.matrix, slot.part_of.first_row),
        )
        parts[name] = Part(whole.name, start, info)
    return CheckpointOfParts(checkpoint, parts) if parts else checkpoint
