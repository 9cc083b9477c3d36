"""Where keys and values live: the interface that every store shares.

Owns: what a block is to whoever computes: a run of slots. A slot holds the keys and values of one
token, in all layers.
May not know: who owns a block (that is decided in integers, elsewhere), models, scheduling.
Read next: `arrays.py` (the memory), `paged.py`, `contiguous.py`.
"""

from __future__ import annotations

from typing import Protocol

from firsthand.kvcache.arrays import KVLayout, KVType, LayerArrays


class KVStore(Protocol):
    """`num_blocks` blocks of `block_size` slots (a multiple of 16); block b begins at slot
    `block_start(b)`, also a multiple of 16.

    `num_bytes` are reserved; `resident_bytes(n)` are those that n written tokens fill.
    """

    @property
    def block_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def kv_dtype(self) -> KVType: ...
    @property
    def layout(self) -> KVLayout: ...
    def resident_bytes(self, num_tokens: int) -> int: ...
    def block_start(self, block_id: int) -> int: ...
    def layer(self, layer: int) -> LayerArrays: ...
    def copy_block(self, source: int, target: int) -> None: ...
    def fill_block(self, block_id: int, byte: int) -> None: ...
