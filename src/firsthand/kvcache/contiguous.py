"""The contiguous store: one long run of slots per sequence.

Owns: the arrays, and the move of a sequence's slots to another place.
May not know: which sequence has which run, how many tokens of a run are filled.
Read next: `compute/batch.py`, how a token finds its slot.

To a kernel contiguous is paged with one huge block: block size = the longest sequence, so that a
block table has one entry, and it sees no difference between the two. The run behind that entry is
only as long as its sequence can get: `regions.py` gives it out, counts in granules of 16 tokens,
and moves it. What contiguous pays is reserved room for tokens that never come.
"""

from __future__ import annotations

from collections.abc import Callable

from firsthand.kvcache.arrays import TILE, KVArrays, KVLayout, KVType, LayerArrays

SPARE = -1  # the last run, which nobody gives out: for traces


class ContiguousStore:
    """`num_slots` slots for runs of up to `max_tokens` tokens each, and one run more, `SPARE`.

    Run b begins at b · block_size, until someone who gives out runs of any length is followed.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        *,
        num_slots: int,
        max_tokens: int,
        kv_dtype: KVType = "int16",
        layout: KVLayout = "tiles",
    ) -> None:
        self._block_size = -(-max_tokens // TILE) * TILE
        self._spare = -(-num_slots // TILE) * TILE
        self._start_of: Callable[[int], int] | None = None
        self._arrays = KVArrays(
            num_layers,
            num_kv_heads,
            head_size,
            num_slots=self._spare + self._block_size,
            kv_dtype=kv_dtype,
            layout=layout,
        )

    def follow(self, start_of: Callable[[int], int]) -> None:
        """From now on `start_of` says where a run begins; its slots can be moved."""
        self._start_of = start_of

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """Runs of the whole block size; there can be more, shorter ones."""
        return self._spare // self._block_size

    @property
    def num_bytes(self) -> int:
        """Bytes reserved: every slot in every layer, keys and values."""
        return self._arrays.num_bytes

    @property
    def kv_dtype(self) -> KVType:
        return self._arrays.kv_dtype

    @property
    def layout(self) -> KVLayout:
        return self._arrays.layout

    def resident_bytes(self, num_tokens: int) -> int:
        """Bytes that so many written tokens fill; the rest of `num_bytes` is only reserved."""
        return num_tokens * self._arrays.slot_bytes

    def block_start(self, block_id: int) -> int:
        if block_id == SPARE:
            return self._spare
        if self._start_of is not None:
            return self._start_of(block_id)
        return block_id * self._block_size

    def layer(self, layer: int) -> LayerArrays:
        return self._arrays.layer(layer)

    def copy_block(self, source: int, target: int) -> None:
        """Only for runs of the whole block size."""
        self._arrays.copy(self.block_start(source), self.block_start(target), self._block_size)

    def fill_block(self, block_id: int, byte: int) -> None:
        """Only for runs of the whole block size."""
        self._arrays.fill(self.block_start(block_id), self._block_size, byte)

    def move_slots(self, source: int, target: int, count: int) -> None:
        """Slots to another place, in all layers; all three multiples of 16; they may overlap."""
        self._arrays.copy(source, target, count)
