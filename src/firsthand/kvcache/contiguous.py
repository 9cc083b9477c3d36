"""The contiguous store: one long row of slots per sequence.

Owns: the arrays, one pair per layer.
May not know: which sequence has which row, how many tokens of a row are filled.
Read next: `compute/batch.py`, how a token finds its slot.

Contiguous is paged with one huge block: block size = the longest sequence, so that each sequence
owns exactly one block and its block table has one entry. Kernels therefore see no difference
between the two; what contiguous pays is reserved address space for tokens that never come.
Reserved is not resident: the arrays are never filled, so the operating system gives a page when
the first token is written into it.
"""

from __future__ import annotations

import math
import mmap
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

KVType = Literal["float16", "float32"]


class ContiguousStore:
    """`num_sequences` rows of `max_tokens` slots; keys and values (num_slots, G, D) per layer."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        *,
        num_sequences: int,
        max_tokens: int,
        dtype: KVType = "float16",
    ) -> None:
        shape = (num_sequences * max_tokens, num_kv_heads, head_size)
        kind = np.float16 if dtype == "float16" else np.float32
        self._block_size = max_tokens
        self._num_blocks = num_sequences
        self._keys = [_reserve(shape, np.dtype(kind)) for _ in range(num_layers)]
        self._values = [_reserve(shape, np.dtype(kind)) for _ in range(num_layers)]
        self._dtype: np.dtype[np.float32] | np.dtype[np.float16] = self._keys[0].dtype

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def dtype(self) -> np.dtype[np.float32] | np.dtype[np.float16]:
        return self._dtype

    @property
    def num_bytes(self) -> int:
        """Bytes reserved: every slot in every layer, keys and values."""
        return sum(array.nbytes for array in self._keys + self._values)

    def resident_bytes(self, num_tokens: int) -> int:
        """Bytes that so many written tokens fill; the rest of `num_bytes` is only reserved."""
        return num_tokens * self.num_bytes // (self._num_blocks * self._block_size)

    def block_start(self, block_id: int) -> int:
        return block_id * self._block_size

    def keys(self, layer: int) -> NDArray[np.float32] | NDArray[np.float16]:
        return self._keys[layer]

    def values(self, layer: int) -> NDArray[np.float32] | NDArray[np.float16]:
        return self._values[layer]


def _reserve(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Address space whose small pages come when they are written. Huge pages would have the first
    token of every layer wait while megabytes are cleared (docs/experiments.md)."""
    num_bytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        raise MemoryError(f"{num_bytes} bytes of address space") from None
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=dtype).reshape(shape)
