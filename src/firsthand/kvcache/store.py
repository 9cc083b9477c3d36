"""Where keys and values live: the interface that every store shares.

Owns: what a slot is, and how a block is found. A slot holds the keys and
values of one token, in all layers.
May not know: who owns a block (that is decided in integers, elsewhere), models, scheduling.
Read next: `contiguous.py`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class KVStore(Protocol):
    """`num_blocks` blocks of `block_size` slots; block b begins at slot `block_start(b)`.

    `keys(layer)` and `values(layer)` are (slots, G, D), C-contiguous, float32 or float16: the
    memory itself, not a copy. `num_bytes` are reserved; `resident_bytes(n)` are those that n
    written tokens fill.
    """

    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[np.float32] | np.dtype[np.float16]: ...
    def resident_bytes(self, num_tokens: int) -> int: ...
    def block_start(self, block_id: int) -> int: ...
    def keys(self, layer: int) -> NDArray[np.float32] | NDArray[np.float16]: ...
    def values(self, layer: int) -> NDArray[np.float32] | NDArray[np.float16]: ...
