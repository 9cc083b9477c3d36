"""Where keys and values live: the interface that every store shares, and the contiguous one.

Owns: the memory behind the slots. A slot holds the keys and values of one token, in all layers.
May not know: who owns a block (that is decided in integers, elsewhere), models, scheduling.
Read next: `contiguous.py`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class KVStore(Protocol):
    """Slots are numbered 0…num_slots − 1; block b begins at slot `block_start(b)`.

    `keys(layer)` and `values(layer)` are (num_slots, G, D), C-contiguous, float32 or float16.
    They are the memory itself, not a copy.
    """

    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[np.float32] | np.dtype[np.float16]: ...
    def block_start(self, block_id: int) -> int: ...
    def keys(self, layer: int) -> NDArray[np.float32] | NDArray[np.float16]: ...
    def values(self, layer: int) -> NDArray[np.float32] | NDArray[np.float16]: ...
