"""From a checkpoint to an executor: every tensor found, checked, handed over, counted.

Owns: the match between a model's slots and a file's tensors, ties, and the report of a load.
May not know: how bytes become values, any architecture, any executor.
Read next: `sources.py` (bytes to rows of weights), `tensor_names.py` (whose name is whose).
Seen in: `firsthand lab load-peak`.

Nothing is handed over before the whole match is right: a missing or left-over tensor would give
a model that runs and talks nonsense.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.quant import ggml
from firsthand.quant.formats import Format
from firsthand.values import dataclass
from firsthand.weights.checkpoint import Checkpoint, GgufLayout, Slot, TensorInfo, WeightSink
from firsthand.weights.cuts import with_parts
from firsthand.weights.sources import (
    FileSource,
    Quantization,
    held_format,
    is_readable,
    open_source,
    read_vector,
    wished_format,
)
from firsthand.weights.tensor_names import canonical_names, is_ignorable, to_gguf

MAX_PROBLEMS_SHOWN = 20
MAX_PROBLEM_CHARS = 300  # the names in a message are the file's, however long
COMPARE_BYTES = 1 << 20

Progress = Callable[[int, int], None]  # bytes of the file done, bytes in all


class PackedForm(Protocol):
    """Matrices that an earlier load left in the executor's own form."""

    def fits(self, wanted: Mapping[str, tuple[tuple[int, ...], str]]) -> bool:
        """Whether it has exactly these: shape, and kind in the file, by name."""

    def hand_over(self, name: str) -> Format:
        """Give one to the executor."""


@dataclass(frozen=True, slots=True)
class LoadedTensor:
    """One tensor: as the file has it, and as it was handed over."""

    name: str
    kind: str
    format: str
    file_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class TiedTensor:
    """A second name for a loaded tensor; `saved_bytes` are what a copy would have cost."""

    name: str
    target: str
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did. Each tensor counts once, under however many names."""

    tensors: tuple[LoadedTensor, ...]
    aliases: tuple[TiedTensor, ...]
    ignored: tuple[str, ...]

    @property
    def file_bytes(self) -> int:
        return sum(tensor.file_bytes for tensor in self.tensors)

    @property
    def held_bytes(self) -> int:
        return sum(tensor.held_bytes for tensor in self.tensors)

    @property
    def saved_bytes(self) -> int:
        return sum(alias.saved_bytes for alias in self.aliases)


def load(
    checkpoint: Checkpoint,
    slots: Sequence[Slot],
    gguf_layout: GgufLayout,
    sink: WeightSink,
    quantization: Quantization = "auto",
    progress: Progress | None = None,
    packed: PackedForm | None = None,
) -> LoadReport:
    """Hand every slot's tensor to `sink`, one at a time, then the aliases.

    Matrices go as `WeightSource`, vectors as float32 arrays (N,); a tensor's pages are given back
    after it. `gguf_layout` counts for GGUF files only; `quantization` is explained at
    `open_source`. Matrices that `packed` has are taken from there, all of them or none.
    Raises CheckpointError with all that is missing, extra, misshapen or doubled;
    UnsupportedModel for number formats that we do not read.
    """
    layout = gguf_layout if checkpoint.form == "gguf" else None
    checkpoint = with_parts(checkpoint, slots, layout)
    matched = _match(checkpoint, slots, layout)
    tied, own = {}, []
    for slot in slots:
        if slot.tied_to is not None and _is_same(checkpoint, matched, slot.name, slot.tied_to):
            tied[slot.name] = slot.tied_to
        elif slot.name in matched.infos:
            own.append(slot)
    total_bytes = sum(matched.infos[slot.name].num_bytes for slot in own)
    interleaved = layout is not None and layout.interleaved
    if packed is not None and not packed.fits(_matrices(own, matched)):
        packed = None
    loaded: dict[str, LoadedTensor] = {}
    done_bytes = 0
    for slot in own:
        info = matched.infos[slot.name]
        rope_heads = slot.rope_heads if interleaved else None
        if packed is not None and len(slot.shape) == 2:
            loaded[slot.name] = _loaded(info, slot, packed.hand_over(slot.name))
        else:
            loaded[slot.name] = _hand_over(checkpoint, info, slot, rope_heads, sink, quantization)
        checkpoint.release(info.name)
        done_bytes += info.num_bytes
        if progress is not None:
            progress(done_bytes, total_bytes)
    for name, target in tied.items():
        sink.alias(name, target)
    return LoadReport(
        tensors=tuple(loaded.values()),
        aliases=tuple(TiedTensor(n, t, loaded[t].held_bytes) for n, t in tied.items()),
        ignored=matched.ignored,
    )


def planned_bytes(
    checkpoint: Checkpoint,
    slots: Sequence[Slot],
    gguf_layout: GgufLayout,
    quantization: Quantization,
) -> list[int]:
    """What each weight will take, without reading one: `LoadReport.held_bytes`, but for scales
    that need float32 and for a tied tensor that the file holds twice. Raises as `load` does."""
    layout = gguf_layout if checkpoint.form == "gguf" else None
    infos = _match(with_parts(checkpoint, slots, layout), slots, layout).infos
    places: dict[tuple[str, int], int] = {}
    for slot in slots:
        info = infos.get(slot.name)
        if info is None:
            continue
        asked: Quantization = "none" if slot.is_exact else quantization
        held = wished_format(info, asked, is_head=slot.is_head)
        size = held.num_bytes(*slot.shape) if len(slot.shape) == 2 else 4 * slot.shape[0]
        places[info.file, info.offset] = size
    return list(places.values())


def _hand_over(
    checkpoint: Checkpoint,
    info: TensorInfo,
    slot: Slot,
    rope_heads: int | None,
    sink: WeightSink,
    quantization: Quantization,
) -> LoadedTensor:
    if len(slot.shape) == 1:
        values = read_vector(checkpoint, info, rope_heads)
        if checkpoint.form != "gguf":
            values += np.float32(slot.offset)
        sink.load_vector(slot.name, values)
        return LoadedTensor(slot.name, info.kind, "float32", info.num_bytes, values.nbytes)
    n, k = slot.shape
    file = FileSource(checkpoint, info, slot.name, (n, k), held_format(info), rope_heads)
    source = open_source(file, "none" if slot.is_exact else quantization, is_head=slot.is_head)
    sink.load_weight(source)
    return _loaded(info, slot, source.format)


def _loaded(info: TensorInfo, slot: Slot, format: Format) -> LoadedTensor:
    held_bytes = format.num_bytes(*slot.shape)
    return LoadedTensor(slot.name, info.kind, str(format), info.num_bytes, held_bytes)


def _matrices(slots: Sequence[Slot], matched: _Match) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape, and kind in the file, of each matrix."""
    return {
        slot.name: (slot.shape, matched.infos[slot.name].kind)
        for slot in slots
        if len(slot.shape) == 2
    }


@dataclass(frozen=True, slots=True)
class _Match:
    """The tensor of each slot that has one, and the names that were left on purpose."""

    infos: dict[str, TensorInfo]
    ignored: tuple[str, ...]


def _match(checkpoint: Checkpoint, slots: Sequence[Slot], layout: GgufLayout | None) -> _Match:
    """Raises as `load` does."""
    tensors = checkpoint.tensors
    candidates: dict[str, list[TensorInfo]] = defaultdict(list)
    for file_name, name in canonical_names(tensors, layout).items():
        candidates[name].append(tensors[file_name])
    wanted = {slot.name for slot in slots}
    left = [info.name for name, infos in candidates.items() if name not in wanted for info in infos]
    problems = [p for slot in slots for p in _problems(slot, candidates, layout)]
    problems += [f"{name!r} is extra" for name in left if not is_ignorable(name)]
    if problems:
        raise CheckpointError(checkpoint.path, _listed("tensors do not fit the model", problems))
    found = {slot.name: candidates[slot.name][0] for slot in slots if slot.name in candidates}
    unread = [f"{i.name!r} is {i.kind}" for i in found.values() if not is_readable(i)]
    if unread:
        what = "tensors in number formats that are not supported"
        raise UnsupportedModel(f"{checkpoint.path}: {_listed(what, unread)}")
    for slot in slots:
        if slot.name in found:
            _check_bytes(found[slot.name], slot)
    return _Match(found, tuple(name for name in left if is_ignorable(name)))


def _problems(
    slot: Slot, candidates: dict[str, list[TensorInfo]], layout: GgufLayout | None
) -> Iterator[str]:
    infos = candidates.get(slot.name, [])
    if not infos and not slot.optional and slot.tied_to is None:
        file_name = None if layout is None else to_gguf(slot.name, layout)
        yield f"{slot.name!r} is missing" + (f" ({file_name!r} in GGUF)" if file_name else "")
    if len(infos) > 1:
        yield f"{slot.name!r} is there {len(infos)} times: " + ", ".join(i.name for i in infos)
    for info in infos:
        if info.shape != slot.shape:
            file_name = "" if info.name == slot.name else f" (in the file {info.name!r})"
            yield f"{slot.name!r}{file_name} is {info.shape}, not {slot.shape}"


def _check_bytes(info: TensorInfo, slot: Slot) -> None:
    """The bytes must be the shape's, and the heads must cut the rows evenly."""
    k = info.shape[-1]
    if info.matrix is not None:
        return
    try:
        row_bytes = ggml.bytes_per_row(info.kind, k)
    except ValueError as error:
        raise CheckpointError(info.file, str(error), info.name) from error
    expected = info.num_elements // k * row_bytes
    if info.num_bytes != expected:
        message = f"{info.num_bytes} bytes, where {info.shape} in {info.kind} takes {expected}"
        raise CheckpointError(info.file, message, info.name)
    if slot.rope_heads is not None and info.shape[0] % (2 * slot.rope_heads):
        message = f"{info.shape[0]} rows are not {slot.rope_heads} heads of an even size"
        raise CheckpointError(info.file, message, info.name)


def _is_same(checkpoint: Checkpoint, matched: _Match, name: str, target: str) -> bool:
    """Whether `name` is absent, or the same tensor as `target` by address or byte for byte."""
    if name not in matched.infos:
        return True
    one, other = matched.infos[name], matched.infos[target]
    if (one.kind, one.shape) != (other.kind, other.shape):
        return False
    if (one.file, one.offset) == (other.file, other.offset):
        return True
    a, b = checkpoint.raw(one.name), checkpoint.raw(other.name)
    starts = range(0, one.num_bytes, COMPARE_BYTES)
    same = all(np.array_equal(a[s : s + COMPARE_BYTES], b[s : s + COMPARE_BYTES]) for s in starts)
    checkpoint.release(one.name)
    checkpoint.release(other.name)
    return same


def _listed(what: str, problems: list[str]) -> str:
    shown = "; ".join(problem[:MAX_PROBLEM_CHARS] for problem in problems[:MAX_PROBLEMS_SHOWN])
    more = len(problems) - MAX_PROBLEMS_SHOWN
    return f"{len(problems)} {what}: {shown}" + (f"; and {more} more" if more > 0 else "")
