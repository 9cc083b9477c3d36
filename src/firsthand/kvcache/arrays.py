"""The memory of keys and values: its layouts, its number formats, and how both are read back.

Owns: the arrays, one set per layer, and the formulas of int8 and int16. `read` and `write` say in
numpy what the kernels do.
May not know: blocks, sequences, models.
Read next: `store.py` (what a store is), `paged.py` and `contiguous.py` (the two there are).
Seen in: `firsthand lab layouts`.

A slot holds the keys and values of one token. Slots lie in tiles of 16, and a kernel reads a key
as one vector per dimension of 16 positions. `tiles` stores them so; `rows` stores a token's key
in one piece, as the model gives it, and pays with a transposition at every read
(`firsthand bench ablate` measures both). Reserved is not resident: nothing is filled, so the
operating system gives a page when the first token is written into it.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from firsthand.memory.reservation import Reservation
from firsthand.values import dataclass

KVType = Literal["int16", "float16", "float32", "int8"]
KVLayout = Literal["tiles", "rows"]

TILE = 16  # slots; the kernels' lanes

_DTYPES: dict[KVType, np.dtype[Any]] = {
    "int16": np.dtype(np.int16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "int8": np.dtype(np.int8),
}


@dataclass(frozen=True, slots=True, eq=False)
class LayerArrays:
    """One layer. N tiles of 16 slots; the memory itself, not a copy.

    `tiles`: keys (N, G, D, 16), values (N, G, 16, D), scales (N, G, 16).
    `rows`: keys and values (N, 16, G, D), scales (N, 16, G).
    Scales are there for int8 and int16: one per token and head, never running ones. In `tiles` of
    int16, two numbers lie side by side that kernels multiply together: a head's keys are
    (D / 2, 16, 2), two dimensions of a position; its values (8, D, 2), two positions of one.
    """

    keys: NDArray[Any]
    values: NDArray[Any]
    key_scales: NDArray[np.float32] | None
    value_scales: NDArray[np.float32] | None
    layout: KVLayout

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token."""
        arrays = (self.keys, self.values, self.key_scales, self.value_scales)
        return sum(array[0].nbytes // TILE for array in arrays if array is not None)

    def read(self, slots: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values (n, G, D) of so many slots, at least float32."""
        tile, lane = np.divmod(slots, TILE)
        if self.layout == "rows":
            codes = (self.keys[tile, lane], self.values[tile, lane])
        elif self.keys.dtype == np.int16:
            by_pairs, by_positions = self._pairs()
            codes = (
                by_pairs[tile, :, :, lane].reshape(len(slots), *self.keys.shape[1:3]),
                by_positions[tile, :, lane // 2, :, lane % 2],
            )
        else:
            codes = (self.keys[tile, :, :, lane], self.values[tile, :, lane])
        keys, values = (array.astype(np.result_type(array, np.float32)) for array in codes)
        if self.key_scales is not None and self.value_scales is not None:
            at = (tile, slice(None), lane) if self.layout == "tiles" else (tile, lane)
            keys = keys * self.key_scales[at][..., None]
            values = values * self.value_scales[at][..., None]
        return keys, values

    def write(
        self,
        slots: NDArray[np.int64],
        keys: NDArray[Any],
        values: NDArray[Any],
    ) -> None:
        """Keys and values (n, G, D) into so many slots, rounded to the type of the arrays."""
        tile, lane = np.divmod(slots, TILE)
        by_tile = self.layout == "tiles"
        if self.key_scales is not None and self.value_scales is not None:
            at = (tile, slice(None), lane) if by_tile else (tile, lane)
            to_codes = to_int8 if self.keys.dtype == np.int8 else to_int16
            keys, self.key_scales[at] = to_codes(keys)
            values, self.value_scales[at] = to_codes(values)
        if not by_tile:
            self.keys[tile, lane] = keys
            self.values[tile, lane] = values
        elif self.keys.dtype == np.int16:
            by_pairs, by_positions = self._pairs()
            by_pairs[tile, :, :, lane] = keys.reshape(*keys.shape[:2], -1, 2)
            by_positions[tile, :, lane // 2, :, lane % 2] = values
        else:
            self.keys[tile, :, :, lane] = keys
            self.values[tile, :, lane] = values

    def _pairs(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Tiles of int16 as they lie: keys (N, G, D / 2, 16, 2), values (N, G, 8, D, 2)."""
        n, g, d, _ = self.keys.shape
        keys = self.keys.reshape(n, g, d // 2, TILE, 2)
        return keys, self.values.reshape(n, g, TILE // 2, d, 2)


def to_int8(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Codes (…, D), whole numbers of −127 … 127, and scales (…): x ≈ code · scale, where scale is
    max|x| / 127. Rounded to nearest, ties to even.

    A NaN or an infinity in x makes its scale NaN: whatever reads it is NaN, never a plausible
    number. A largest value that is tiny (127 / max|x| overflows) is taken for zero.
    """
    peak = np.abs(x).max(axis=-1)
    peak = np.where(np.isfinite(peak), peak, np.float32(np.nan))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        factor = np.float32(127) / peak
        factor = np.where(np.isfinite(factor), factor, np.float32(0))
        codes = np.nan_to_num(np.rint(x * factor[..., None]), nan=0.0)
    return codes, np.asarray(peak / np.float32(127), dtype=np.float32)


def to_int16(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Codes (…, D), whole numbers, and steps (…): x ≈ code · step, where step is |x| / 32767 and
    |x| the root of the sum of squares, so that the product of two such vectors of codes stays below
    2³¹. The squares are summed over 16 lanes, which a tree joins, as everywhere in the kernels.

    A NaN, an infinity or a square that overflows makes the step NaN and the codes 0: whatever reads
    them is NaN.
    """
    limit, d = np.float32(32767), x.shape[-1]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        squares = np.zeros((*x.shape[:-1], -(-d // TILE) * TILE), np.float32)
        squares[..., :d] = x * x
        lanes = np.zeros((*x.shape[:-1], TILE), np.float32)
        for first in range(0, d, TILE):
            lanes = lanes + squares[..., first : first + TILE]
        while lanes.shape[-1] > 1:
            half = lanes.shape[-1] // 2
            lanes = lanes[..., :half] + lanes[..., half:]
        norm = np.sqrt(lanes[..., 0])
        norm = np.where(np.isfinite(norm), norm, np.float32(np.nan))
        factor = limit / norm
        factor = np.where(np.isfinite(factor), factor, np.float32(0))
        codes = np.nan_to_num(np.rint(x * factor[..., None]), nan=0.0)
    return codes, np.asarray(norm / limit, dtype=np.float32)


class KVArrays:
    """`num_slots` slots (a multiple of 16) in every layer."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        *,
        num_slots: int,
        kv_dtype: KVType = "int16",
        layout: KVLayout = "tiles",
    ) -> None:
        if num_slots < TILE or num_slots % TILE:
            raise ValueError(f"{num_slots} slots are no whole number of tiles of {TILE}")
        if kv_dtype == "int16" and head_size % 2:
            raise ValueError(f"an int16 cache takes heads of an even size, not {head_size}")
        self.kv_dtype = kv_dtype
        self.layout = layout
        self.num_slots = num_slots
        g, d, n = num_kv_heads, head_size, num_slots // TILE
        by_tile = layout == "tiles"
        dtype = _DTYPES[kv_dtype]
        key_shape, value_shape, scale_shape = (
            ((n, g, d, TILE), (n, g, TILE, d), (n, g, TILE))
            if by_tile
            else ((n, TILE, g, d), (n, TILE, g, d), (n, TILE, g))
        )

        def scales() -> NDArray[np.float32] | None:
            return reserve(scale_shape, np.dtype(np.float32)) if dtype.kind == "i" else None

        self._layers = [
            LayerArrays(
                reserve(key_shape, dtype), reserve(value_shape, dtype), scales(), scales(), layout
            )
            for _ in range(num_layers)
        ]

    def layer(self, layer: int) -> LayerArrays:
        return self._layers[layer]

    @property
    def num_bytes(self) -> int:
        """Bytes reserved, in all layers."""
        return sum(array.nbytes for array in self._arrays())

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token, in all layers."""
        return self.num_bytes // self.num_slots

    def copy(self, source: int, target: int, count: int) -> None:
        """Slots source … source + count − 1 to target …, all multiples of 16; they may overlap."""
        start, to, tiles = source // TILE, target // TILE, count // TILE
        for array in self._arrays():
            array[to : to + tiles] = array[start : start + tiles]

    def fill(self, start: int, count: int, byte: int) -> None:
        """Every byte of so many slots; to prove that nothing of them is read."""
        tiles = slice(start // TILE, (start + count) // TILE)
        for array in self._arrays():
            array[tiles].view(np.uint8)[...] = byte

    def _arrays(self) -> list[NDArray[Any]]:
        return [
            array
            for layer in self._layers
            for array in (layer.keys, layer.values, layer.key_scales, layer.value_scales)
            if array is not None
        ]


def reserve(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array whose memory is reserved, not filled. Raises MemoryError."""
    memory = Reservation(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(memory.view(0, memory.num_bytes), dtype=dtype).reshape(shape)
