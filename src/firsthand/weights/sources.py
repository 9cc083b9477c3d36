"""A tensor of a checkpoint as rows of a weight: in our row order, checked, in the wished format.

Owns: the way from a tensor's bytes to `WeightSource`, block by block.
May not know: which tensors a model needs, who takes the rows.
Read next: `loading.py` (who makes these), `quant/ggml.py`, `quant/round.py`.

Row order. GGUF files of the llama family hold each head of a query or key projection as pairs
(i, half), because the first programs that read them rotated neighbours. Ours is (half, i), as in
the original checkpoint: row half · D/2 + i of a head lies in the file at row 2 · i + half.
Whole rows move, so blocks need no decoding.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import CheckpointError
from firsthand.quant import ggml
from firsthand.quant import round as rounding
from firsthand.quant.formats import (
    ChannelFormat,
    ChannelWeight,
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    Weight,
    decode,
    row_blocks,
)
from firsthand.values import dataclass
from firsthand.weights.bundles import IntegerMatrix
from firsthand.weights.checkpoint import Checkpoint, MatrixRows, TensorInfo

Quantization = Literal["auto", "none", "int8", "int4"]
INT4_GROUP = 32


@dataclass(frozen=True, slots=True)
class FileSource:
    """`WeightSource` over a matrix as the file holds it. `rope_heads` is set where the file's
    rows are interleaved."""

    checkpoint: Checkpoint
    info: TensorInfo
    name: str
    shape: tuple[int, int]
    format: Format
    rope_heads: int | None = None

    def rows(self, start: int, stop: int) -> Weight:
        n, k = self.shape
        if not 0 <= start <= stop <= n:
            raise ValueError(f"rows {start}…{stop} of {n}")
        if self.info.matrix is not None:
            return self._checked(self.info.matrix.rows(start, stop))
        raw = self.checkpoint.raw(self.info.name)
        rows = raw.reshape(n, ggml.bytes_per_row(self.info.kind, k))
        wanted = rows[start:stop]
        if self.rope_heads is not None:
            wanted = rows[file_rows(start, stop, n, self.rope_heads)]
        return self._checked(ggml.read_rows(self.info.kind, wanted, k))

    def _checked(self, weight: Weight) -> Weight:
        if not _is_finite(weight):
            raise CheckpointError(
                self.info.file, "holds a NaN or an infinity", tensor=self.info.name
            )
        return weight

    def release(self) -> None:
        self.checkpoint.release(self.info.name)


@dataclass(frozen=True, slots=True)
class ConvertedSource:
    """`WeightSource` that decodes the file's rows and rounds them to another format. It holds as
    many decoded rows as are asked for at a time (see `row_blocks`)."""

    file: FileSource
    format: Format

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def shape(self) -> tuple[int, int]:
        return self.file.shape

    def rows(self, start: int, stop: int) -> Weight:
        values = decode(self.file.rows(start, stop))
        try:
            match self.format:
                case ChannelFormat():
                    return rounding.to_channel_int8(values)
                case GroupedFormat(bits, group, scale_dtype):
                    return rounding.to_grouped(values, bits, group, scale_dtype)
                case FloatFormat():
                    return FloatWeight(self.format, values)
        except ValueError as error:
            where = f"from row {start}: {error}"
            raise CheckpointError(self.file.info.file, where, self.file.info.name) from error

    def release(self) -> None:
        self.file.release()


def open_source(
    file: FileSource, quantization: Quantization, *, is_head: bool = False
) -> FileSource | ConvertedSource:
    """The file's matrix in the format that `quantization` asks for.

        auto    blocks as they are; floats as int8 per channel
        none    floats as they are; blocks as float32
        int8    8-bit blocks as they are; all else as int8 per channel
        int4    4-bit blocks as they are; all else in 4-bit groups of 32 with a minimum

    What already fits is never rounded again: a second rounding only adds error. So `auto` leaves
    float32 where it is all that holds a quantised matrix (see `bundles.py`). Under `int4` a head
    keeps 8 bits (its own blocks, or int8 per channel): see `Slot`. A 4-bit float matrix is
    read twice: the first pass decides whether its scales fit float16.
    """
    wished = wished_format(file.info, quantization, is_head=is_head)
    if wished == file.format:
        return file
    return ConvertedSource(file, _four_bits(file) if isinstance(wished, GroupedFormat) else wished)


def held_format(info: TensorInfo) -> Format:
    """The format that holds a tensor of the file without loss; ValueError if none does."""
    return ggml.format_of(info.kind) if info.matrix is None else info.matrix.format


def is_readable(info: TensorInfo) -> bool:
    """Whether its number format is one that we read."""
    return info.matrix is not None or ggml.is_known(info.kind)


def wished_format(info: TensorInfo, quantization: Quantization, *, is_head: bool = False) -> Format:
    """The format that `open_source` gives a matrix of the file. Of a new 4-bit one the type of the
    scales is float16 here; the values may need float32."""
    held = held_format(info)
    matrix = info.matrix.whole if isinstance(info.matrix, MatrixRows) else info.matrix
    if quantization == "auto" and isinstance(matrix, IntegerMatrix):
        return held
    if quantization == "none":
        return held if isinstance(held, FloatFormat) else FloatFormat("float32")
    if isinstance(held, GroupedFormat):
        fits = {"auto": True, "int8": held.bits == 8, "int4": held.bits == 4 or is_head}
        if fits[quantization]:
            return held
    if quantization == "int4" and not is_head:
        return GroupedFormat(4, INT4_GROUP, "float16", has_minimum=True)
    return ChannelFormat()


def read_vector(
    checkpoint: Checkpoint, info: TensorInfo, rope_heads: int | None = None
) -> NDArray[np.float32]:
    """A one-dimensional tensor (N,) as float32, in our order."""
    n = info.shape[0]
    file = FileSource(checkpoint, info, info.name, (1, n), held_format(info))
    values = np.array(decode(file.rows(0, 1))[0])
    return values if rope_heads is None else values[file_rows(0, n, n, rope_heads)]


def file_rows(start: int, stop: int, n: int, heads: int) -> NDArray[np.intp]:
    """Where our rows start…stop−1 of n lie in a file that interleaves the pairs of each head."""
    size = n // heads
    ours = np.arange(start, stop)
    head, within = ours // size, ours % size
    half, i = within // (size // 2), within % (size // 2)
    return head * size + 2 * i + half


def _four_bits(file: FileSource) -> GroupedFormat:
    n, k = file.shape
    try:
        fits = all(
            rounding.grouped_scale_dtype(decode(file.rows(a, b)), 4, INT4_GROUP) == "float16"
            for a, b in row_blocks(n, k)
        )
    except ValueError as error:
        raise CheckpointError(file.info.file, str(error), file.info.name) from error
    return GroupedFormat(4, INT4_GROUP, "float16" if fits else "float32", has_minimum=True)


def _is_finite(weight: Weight) -> bool:
    match weight:
        case FloatWeight(format, values):
            if format.dtype == "bfloat16":
                exponent = values.view(np.uint16) & np.uint16(0x7F80)
                return not bool((exponent == 0x7F80).any())
            return bool(np.isfinite(values).all())
        case ChannelWeight(_, _, scales):
            return bool(np.isfinite(scales).all())
        case GroupedWeight(_, _, scales, minima):
            return bool(np.isfinite(scales).all()) and (
                minima is None or bool(np.isfinite(minima).all())
            )
