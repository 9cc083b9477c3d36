"""The paged store on the device: one slab for the keys and values of every layer.

Owns: the slab and how it is cut.
May not know: which sequence has which block, kernels.
Read next: `cache.py`, which writes it; `../../kvcache/store.py`, what a store is.

A slot's keys lie in one piece, heads one after another: a card reads 64 positions of a head as 64
runs, each long enough to be worth it.
"""

from __future__ import annotations

from types import MappingProxyType

import torch

from firsthand.compute.triton.cache import LayerMemory
from firsthand.kvcache.arrays import TILE, KVLayout, KVType, LayerArrays
from firsthand.values import dataclass

TYPES = MappingProxyType(
    {
        "float32": torch.float32,
        "float16": torch.float16,
        "int16": torch.int16,
        "int8": torch.int8,
    }
)


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """What is held, and in how many blocks."""

    num_layers: int
    num_kv_heads: int
    head_size: int
    num_blocks: int
    block_size: int
    kv_dtype: KVType


class DeviceStore:
    """A `KVStore`. Raises torch's out-of-memory error where the slab does not fit."""

    layout: KVLayout = "rows"

    def __init__(self, sizes: StoreSizes, device: torch.device) -> None:
        if sizes.block_size < TILE or sizes.block_size % TILE:
            raise ValueError(f"a block of {sizes.block_size} slots is no whole number of {TILE}")
        self._sizes = sizes
        dtype = TYPES[sizes.kv_dtype]
        slots = sizes.num_blocks * sizes.block_size
        shape = (sizes.num_layers, 2, slots, sizes.num_kv_heads, sizes.head_size)
        num_bytes = dtype.itemsize * torch.Size(shape).numel()
        has_codes = not dtype.is_floating_point
        scale_bytes = 4 * torch.Size(shape[:-1]).numel() if has_codes else 0
        self._slab = torch.empty(num_bytes + scale_bytes, dtype=torch.uint8, device=device)
        self._values = self._slab[:num_bytes].view(dtype).view(shape)
        self._scales = None
        if has_codes:
            self._scales = self._slab[num_bytes:].view(torch.float32).view(shape[:-1])

    @property
    def block_size(self) -> int:
        return self._sizes.block_size

    @property
    def num_blocks(self) -> int:
        return self._sizes.num_blocks

    @property
    def num_layers(self) -> int:
        return self._sizes.num_layers

    @property
    def num_bytes(self) -> int:
        return int(self._slab.nbytes)

    @property
    def kv_dtype(self) -> KVType:
        return self._sizes.kv_dtype

    @property
    def slot_bytes(self) -> int:
        """Of one token in all layers."""
        return self.num_bytes // (self.num_blocks * self.block_size)

    def resident_bytes(self, num_tokens: int) -> int:
        return num_tokens * self.slot_bytes

    def block_start(self, block_id: int) -> int:
        return block_id * self.block_size

    def memory(self, layer: int) -> LayerMemory:
        """One layer, where the kernels find it."""
        keys, values = self._values[layer]
        if self._scales is None:
            return LayerMemory(keys, values, None, None)
        return LayerMemory(keys, values, *self._scales[layer])

    def layer(self, layer: int) -> LayerArrays:
        """The memory itself where the device is the CPU; a copy of it where it is not."""
        sizes, held = self._sizes, self.memory(layer)
        shape = (-1, TILE, sizes.num_kv_heads)
        scales = [
            None if tensor is None else tensor.cpu().view(shape).numpy()
            for tensor in (held.key_scales, held.value_scales)
        ]
        keys, values = (
            tensor.cpu().view(*shape, sizes.head_size).numpy()
            for tensor in (held.keys, held.values)
        )
        return LayerArrays(keys, values, scales[0], scales[1], self.layout)

    def copy_block(self, source: int, target: int) -> None:
        """In the order of the steps: a step that comes later finds the copy made."""
        for memory in (self._values, self._scales):
            if memory is not None:
                memory[:, :, self._block(target)] = memory[:, :, self._block(source)]

    def fill_block(self, block_id: int, byte: int) -> None:
        for memory in (self._values, self._scales):
            if memory is not None:
                for part in memory.view(torch.uint8).flatten(0, 1):
                    part[self._block(block_id)] = byte

    def _block(self, block_id: int) -> slice:
        start = self.block_start(block_id)
        return slice(start, start + self.block_size)
