"""The paged store, the default: small blocks of one size, given out one at a time.

Owns: how a block's number becomes a slot.
May not know: which sequence has which block, how many tokens of one are filled.
Read next: `blocks.py`, who decides in integers; `contiguous.py`, the store this is compared with.
Seen in: `firsthand lab attention-growth`.

A sequence holds as many blocks as it has tokens, so a long possible answer reserves nothing, and
blocks with equal content can be one. arXiv 2309.06180, section 4.
"""

from __future__ import annotations

from firsthand.kvcache.arrays import TILE, KVArrays, KVLayout, KVType, LayerArrays

BLOCK_SIZE = 16


class PagedStore:
    """`num_blocks` blocks of `block_size` slots, one after another."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        *,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        kv_dtype: KVType = "int16",
        layout: KVLayout = "tiles",
    ) -> None:
        if block_size < TILE or block_size % TILE:
            raise ValueError(f"a block of {block_size} slots is no whole number of {TILE}")
        self._arrays = KVArrays(
            num_layers,
            num_kv_heads,
            head_size,
            num_slots=num_blocks * block_size,
            kv_dtype=kv_dtype,
            layout=layout,
        )
        self._block_size = block_size
        self._num_blocks = num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_bytes(self) -> int:
        return self._arrays.num_bytes

    @property
    def kv_dtype(self) -> KVType:
        return self._arrays.kv_dtype

    @property
    def layout(self) -> KVLayout:
        return self._arrays.layout

    def resident_bytes(self, num_tokens: int) -> int:
        return num_tokens * self._arrays.slot_bytes

    def block_start(self, block_id: int) -> int:
        return block_id * self._block_size

    def layer(self, layer: int) -> LayerArrays:
        return self._arrays.layer(layer)

    def copy_block(self, source: int, target: int) -> None:
        self._arrays.copy(self.block_start(source), self.block_start(target), self._block_size)

    def fill_block(self, block_id: int, byte: int) -> None:
        self._arrays.fill(self.block_start(block_id), self._block_size, byte)
