"""Blocks of a GGUF file as weights, without loss.

Owns: the byte layout of each block kind, and which of our formats holds it.
May not know: files, tensor names, executors. Floats of safetensors files pass through here too.
Read next: `formats.py` (the values), `round.py` (where loss happens at a load).

A row of K values is K / block_values blocks, one after the other; all numbers are little-endian.
Source of the layouts: the `gguf` package, `quants.py`; decoding our values gives its bits exactly.

    kind   values  bytes  fields in order                            held as
    Q4_0       32     18  d, 16 nibble pairs                         4 bits, zero 8, f16
    Q4_1       32     20  d, m, 16 nibble pairs                      4 bits, f16 + minimum
    Q5_0       32     22  d, 32 high bits, 16 nibble pairs           8 bits (q − 16), f16
    Q5_1       32     24  d, m, 32 high bits, 16 nibble pairs        8 bits, f16 + minimum
    Q8_0       32     34  d, 32 signed bytes                         8 bits, f16
    Q2_K      256     84  16 (scale, minimum), 64 bytes, d, dmin     4 bits, group 16, f32 + minimum
    Q3_K      256    110  32 high bits, 64 bytes, 12 scales, d       4 bits, zero 4, group 16, f32
    Q4_K      256    144  d, dmin, 12 scales, 128 nibble pairs       4 bits, group 32, f32 + minimum
    Q5_K      256    176  d, dmin, 12 scales, 32 high, 128 pairs     8 bits, group 32, f32 + minimum
    Q6_K      256    210  128 low nibble pairs, 64 high, 16 s, d     8 bits (q − 32), group 16, f32

The K kinds store small integer scales times one float16; the product, rounded to float32 once, is
the group's scale, just as the reference computes it. Their minimum is subtracted: ours is negated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from firsthand.quant.formats import (
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    Weight,
)
from firsthand.values import dataclass

Bytes = NDArray[np.uint8]
Codes = NDArray[np.uint8] | NDArray[np.int8]
Scales = NDArray[np.float16] | NDArray[np.float32]
Parts = tuple[Codes, Scales, Scales | None]  # (N, B, values), (N, B, groups), (N, B, groups)


def format_of(kind: str) -> Format:
    """The format that holds `kind` without loss; a ValueError names a kind that has none."""
    if kind in _FLOATS:
        return _FLOATS[kind]
    return _block(kind).format


def is_known(kind: str) -> bool:
    """Whether `read_rows` can read the kind."""
    return kind in _FLOATS or kind in _BLOCKS


def bytes_per_row(kind: str, k: int) -> int:
    """Bytes of a row of k values. ValueError when k is not a whole number of blocks."""
    if kind in _FLOATS:
        return _FLOATS[kind].num_bytes(1, k)
    block = _block(kind)
    if k % block.values:
        raise ValueError(f"{k} values per row are not a multiple of the {block.values} of {kind}")
    return k // block.values * block.bytes


def read_rows(kind: str, raw: Bytes, k: int) -> Weight:
    """Rows (N, bytes_per_row) as a weight (N, k). Floats may alias `raw`; blocks are copies."""
    if raw.ndim != 2 or raw.shape[1] != bytes_per_row(kind, k):
        raise ValueError(f"rows of {k} values in {kind} cannot have the byte shape {raw.shape}")
    if kind in _FLOATS:
        return _read_floats(_FLOATS[kind], raw)
    block = _block(kind)
    n = len(raw)
    codes, scales, minima = block.unpack(raw.reshape(n, k // block.values, block.bytes))
    groups = k // block.format.group
    return GroupedWeight(
        format=block.format,
        codes=codes.reshape(n, k),
        scales=scales.reshape(n, groups),
        minima=None if minima is None else minima.reshape(n, groups),
    )


def _read_floats(format: FloatFormat, raw: Bytes) -> FloatWeight:
    # A safetensors file may place a tensor at any byte; native code wants aligned elements.
    raw = np.ascontiguousarray(raw)
    values: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]
    match format.dtype:
        case "float32":
            values = raw.view(np.float32)
        case "float16":
            values = raw.view(np.float16)
        case "bfloat16":
            values = raw.view(np.uint16)
    return FloatWeight(format, values if values.flags.aligned else values.copy())


def _half(blocks: Bytes, start: int) -> NDArray[np.float16]:
    """The float16 at byte `start` of each block: (N, B, 1)."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """Each `run` bytes hold `run` low nibbles, then `run` high ones: (N, B, 2 · bytes)."""
    n, b, size = packed.shape
    runs = packed.reshape(n, b, size // run, run)
    codes = np.empty((n, b, size // run, 2, run), np.uint8)
    np.bitwise_and(runs, 15, out=codes[..., 0, :])
    np.right_shift(runs, 4, out=codes[..., 1, :])
    return codes.reshape(n, b, 2 * size)


def _fields(packed: Bytes, width: int) -> Bytes:
    """Runs of 32 bytes; field i of `width` bits of every byte, then field i + 1, and so on."""
    n, b, size = packed.shape
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields = packed.reshape(n, b, size // 32, 1, 32) >> shifts
    fields &= np.uint8((1 << width) - 1)
    return fields.reshape(n, b, size * (8 // width))


def _q4_0(blocks: Bytes) -> Parts:
    return _nibbles(blocks[..., 2:], 16), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Parts:
    return _nibbles(blocks[..., 4:], 16), _half(blocks, 0), _half(blocks, 2)


def _q5(high: Bytes, packed: Bytes) -> Bytes:
    """Bit i of the 32 is the fifth bit of value i."""
    fifth = np.unpackbits(high, axis=-1, bitorder="little")
    return _nibbles(packed, 16) | (fifth << np.uint8(4))


def _q5_0(blocks: Bytes) -> Parts:
    codes = _q5(blocks[..., 2:6], blocks[..., 6:])
    return codes.view(np.int8) - np.int8(16), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Parts:
    codes = _q5(blocks[..., 4:8], blocks[..., 8:])
    return codes.view(np.int8), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Parts:
    return np.ascontiguousarray(blocks[..., 2:]).view(np.int8), _half(blocks, 0), None


def _times(d: NDArray[np.float16], small: Bytes | NDArray[np.int8]) -> NDArray[np.float32]:
    return d.astype(np.float32) * small.astype(np.float32)


def _q2_k(blocks: Bytes) -> Parts:
    packed = blocks[..., :16]
    scales = _times(_half(blocks, 80), packed & np.uint8(15))
    minima = _times(_half(blocks, 82), packed >> np.uint8(4))
    return _fields(blocks[..., 16:80], 2), scales, -minima


def _q3_k(blocks: Bytes) -> Parts:
    # Twelve bytes hold sixteen 6-bit scales: 8 bytes of low nibbles, 4 bytes of upper pairs.
    low = _nibbles(blocks[..., 96:104], 8)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks[..., None, 104:108] >> shifts) & np.uint8(3)
    small = (low | (high.reshape(low.shape) << np.uint8(4))).view(np.int8) - np.int8(32)
    # The high bit adds 4 and the format subtracts 4: a clear bit is the file's way to say −4.
    codes = _fields(blocks[..., 32:96], 2) | (_fields(blocks[..., :32], 1) << np.uint8(2))
    return codes, _times(_half(blocks, 108), small), None


def _q45_k_scales(blocks: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Twelve bytes hold eight 6-bit scales and eight 6-bit minima: bytes 0…3 and 4…7 hold the
    first four of each, and in their upper pairs the tops of the last four; bytes 8…11 hold the
    nibbles of the last four, scale low and minimum high."""
    a, b, c = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    six = np.uint8(0x3F)
    top = np.uint8(0x30)
    scales = np.concatenate([a & six, (c & np.uint8(15)) | ((a >> np.uint8(2)) & top)], axis=-1)
    minima = np.concatenate([b & six, (c >> np.uint8(4)) | ((b >> np.uint8(2)) & top)], axis=-1)
    return _times(_half(blocks, 0), scales), -_times(_half(blocks, 2), minima)


def _q4_k(blocks: Bytes) -> Parts:
    scales, minima = _q45_k_scales(blocks)
    return _nibbles(blocks[..., 16:], 32), scales, minima


def _q5_k(blocks: Bytes) -> Parts:
    scales, minima = _q45_k_scales(blocks)
    codes = _nibbles(blocks[..., 48:], 32) | (_fields(blocks[..., 16:48], 1) << np.uint8(4))
    return codes.view(np.int8), scales, minima


def _q6_k(blocks: Bytes) -> Parts:
    codes = _nibbles(blocks[..., :128], 64) | (_fields(blocks[..., 128:192], 2) << np.uint8(4))
    small = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return codes.view(np.int8) - np.int8(32), _times(_half(blocks, 208), small), None


@dataclass(frozen=True, slots=True)
class _Block:
    """`values` numbers in `bytes` bytes; `unpack` takes (N, B, bytes)."""

    values: int
    bytes: int
    format: GroupedFormat
    unpack: Callable[[Bytes], Parts]


def _block(kind: str) -> _Block:
    if kind not in _BLOCKS:
        known = ", ".join([*_FLOATS, *_BLOCKS])
        raise ValueError(f"number format {kind} is not one of {known}")
    return _BLOCKS[kind]


_FLOATS: Mapping[str, FloatFormat] = MappingProxyType(
    {
        "F32": FloatFormat("float32"),
        "F16": FloatFormat("float16"),
        "BF16": FloatFormat("bfloat16"),
    }
)

_BLOCKS: Mapping[str, _Block] = MappingProxyType(
    {
        "Q4_0": _Block(32, 18, GroupedFormat(4, 32, "float16", False, zero=8), _q4_0),
        "Q4_1": _Block(32, 20, GroupedFormat(4, 32, "float16", True), _q4_1),
        "Q5_0": _Block(32, 22, GroupedFormat(8, 32, "float16", False), _q5_0),
        "Q5_1": _Block(32, 24, GroupedFormat(8, 32, "float16", True), _q5_1),
        "Q8_0": _Block(32, 34, GroupedFormat(8, 32, "float16", False), _q8_0),
        "Q2_K": _Block(256, 84, GroupedFormat(4, 16, "float32", True), _q2_k),
        "Q3_K": _Block(256, 110, GroupedFormat(4, 16, "float32", False, zero=4), _q3_k),
        "Q4_K": _Block(256, 144, GroupedFormat(4, 32, "float32", True), _q4_k),
        "Q5_K": _Block(256, 176, GroupedFormat(8, 32, "float32", True), _q5_k),
        "Q6_K": _Block(256, 210, GroupedFormat(8, 16, "float32", False), _q6_k),
    }
)
