"""A model with an adapter added to its weights for good, as a folder like any other.

Owns: which tensor of a checkpoint gets which change, and the sum.
May not know: executors, how an adapter is read, how a folder is written.
Read next: `adapters.py` (the change), `writing.py` (the writer).

Each changed tensor is weight + b · a in float32, rounded once to the type that the file has; all
others are copied as they are. One block of rows is held at a time. Only floats are merged: rounding
blocks or codes a second time would cost more than the adapter is worth, so such a model is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.quant.formats import decode, float32_to_bfloat16, row_blocks
from firsthand.values import dataclass
from firsthand.weights.adapters import ModuleChange, read_changes, with_experts
from firsthand.weights.checkpoint import Checkpoint, Slot, TensorInfo
from firsthand.weights.open import open_checkpoint
from firsthand.weights.sources import FileSource, held_format
from firsthand.weights.tensor_names import canonical_names
from firsthand.weights.writing import (
    Progress,
    TensorToWrite,
    check_new,
    copy_companions,
    counter,
    new_folder,
    write_files,
)

KINDS = ("F32", "F16", "BF16")
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class MergeReport:
    destination: str
    files: tuple[str, ...]
    num_changed: int  # tensors
    num_bytes: int


def merge(
    model: Path,
    adapter: Path,
    dst: Path,
    slots_of: Callable[[Checkpoint], Sequence[Slot]],
    progress: Progress | None = None,
) -> MergeReport:
    """Write `model` (a folder with safetensors) with `adapter` added, as the new folder `dst`.
    `slots_of` a model are asked for where an adapter changes stacked experts.

    Raises InvalidRequest for a `dst` that exists, UnsupportedModel for weights that are no floats,
    CheckpointError for an adapter that does not fit, and what opening the two raises.
    """
    check_new(dst)
    read = read_changes(adapter)
    with closing(open_checkpoint(model)) as checkpoint:
        if checkpoint.form != "safetensors":
            raise UnsupportedModel(f"{model}: an adapter is merged into safetensors only")
        read = with_experts(adapter, read, lambda: slots_of(checkpoint))
        by_file = _matched(checkpoint, {f"{one.module}.weight": one for one in read})
        infos = checkpoint.tensors.values()
        total = sum(info.num_bytes for info in infos)
        report = counter(progress, total)
        tensors = [
            TensorToWrite(
                info.name,
                info.kind,
                info.shape,
                _chunks(checkpoint, info, by_file.get(info.name), report),
            )
            for info in infos
        ]
        with new_folder(dst) as partial:
            files = write_files(partial, tensors)
            copy_companions(Path(checkpoint.path), partial)
    return MergeReport(str(dst), files, len(by_file), total)


def _matched(
    checkpoint: Checkpoint, changes: Mapping[str, ModuleChange]
) -> dict[str, ModuleChange]:
    """By the tensor's name in the file."""
    ours = {
        name: file_name for file_name, name in canonical_names(checkpoint.tensors, None).items()
    }
    if HEAD in changes and checkpoint.config.get("tie_word_embeddings"):
        raise UnsupportedModel(
            f"{checkpoint.path}: the head is the embedding itself; a change of it alone cannot be "
            "written"
        )
    found: dict[str, ModuleChange] = {}
    for name, change in changes.items():
        info = checkpoint.tensors.get(ours.get(name, ""))
        if info is None:
            raise CheckpointError(checkpoint.path, "is not in the model", name)
        if info.matrix is not None or info.kind not in KINDS:
            raise UnsupportedModel(
                f"{checkpoint.path}: {name} is {info.kind}: only floats are merged; start from the "
                "model as it was before it was quantised"
            )
        shape = (change.b.shape[0], change.a.shape[1])
        if info.shape != shape:
            raise CheckpointError(checkpoint.path, f"is {info.shape}; the change is {shape}", name)
        found[info.name] = change
    return found


def _chunks(
    checkpoint: Checkpoint,
    info: TensorInfo,
    change: ModuleChange | None,
    report: Callable[[int], None],
) -> Iterator[memoryview]:
    found = _copied(checkpoint, info) if change is None else _merged(checkpoint, info, change)
    for chunk in found:
        yield chunk
        report(len(chunk))


def _copied(checkpoint: Checkpoint, info: TensorInfo) -> Iterator[memoryview]:
    yield checkpoint.raw(info.name).data
    checkpoint.release(info.name)


def _merged(checkpoint: Checkpoint, info: TensorInfo, change: ModuleChange) -> Iterator[memoryview]:
    n, k = info.shape
    source = FileSource(checkpoint, info, info.name, (n, k), held_format(info))
    for start, stop in row_blocks(n, k):
        values = decode(source.rows(start, stop)) + change.b[start:stop] @ change.a
        yield _as_kind(values, info).reshape(-1).view(np.uint8).data
    source.release()


def _as_kind(values: NDArray[np.float32], info: TensorInfo) -> NDArray[Any]:
    found: NDArray[Any] = values
    if info.kind == "BF16":
        found = float32_to_bfloat16(values)
    elif info.kind == "F16":
        with np.errstate(over="ignore"):
            found = values.astype(np.float16)
        if not np.isfinite(found).all():
            raise CheckpointError(info.file, "with the adapter is too large for F16", info.name)
    return np.ascontiguousarray(found)
