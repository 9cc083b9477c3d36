"""How large a tile of attention is, so that a card has the shared memory that it asks for.

Owns: the rule, and the figure that a card is asked for.
May not know: the kernel that runs a tile.
Read next: `attention.py`.

A tile holds its queries, a chunk of keys or values for each load that is on its way, and the
weights of a chunk, all in the type of the products. Where that is too much, first fewer loads are
on their way, which changes nothing but time; then it has fewer queries. A chunk and a split never
change: the order of sums is theirs.
"""

from __future__ import annotations

import sys

import torch
from triton.runtime.driver import driver

from firsthand.compute.triton.launch import power_of_two
from firsthand.errors import CapacityExceeded
from firsthand.values import dataclass

CHUNK = 64  # positions
QUERIES = 64  # of a tile of many rows, where there is room: rows times the heads of a group
LEAST_QUERIES = 16  # what a matrix instruction takes
STAGES = 3  # of a loop, where there is room: loads run ahead of products
SMALL_BYTES = 1 << 10  # what a compiler takes for itself


@dataclass(frozen=True, slots=True)
class Tile:
    """A power of two of queries, and the stages of its loop."""

    queries: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of a sequence with many rows in a step, `rows` of them at a time; and of a single one."""

    rows: int
    many: Tile
    one: Tile


def tiles_for(group: int, size: int, dtype: torch.dtype, room: int) -> Tiles:
    """For heads of `size`, `group` of which share a key/value head, and products in `dtype`. Raises
    CapacityExceeded where nothing fits in `room` bytes."""
    least = power_of_two(group, LEAST_QUERIES)
    heights = [least << n for n in range(7) if least << n <= max(QUERIES, least)]
    many = _first_that_fits(heights[::-1], size, dtype, room)
    return Tiles(max(1, many.queries // group), many, _first_that_fits([least], size, dtype, room))


def _first_that_fits(heights: list[int], size: int, dtype: torch.dtype, room: int) -> Tile:
    for queries in heights:
        for stages in range(STAGES, 0, -1):
            tile = Tile(queries, stages)
            if bytes_of(tile, size, dtype) <= room:
                return tile
    raise CapacityExceeded(
        f"attention with heads of {size} in {str(dtype).removeprefix('torch.')} asks for "
        f"{bytes_of(tile, size, dtype) >> 10} KiB of shared memory, and the card has {room >> 10}: "
        "take a smaller kv_dtype"
    )


def bytes_of(tile: Tile, size: int, dtype: torch.dtype) -> int:
    """What a tile asks for, at most: of keys and of values, each stage but the last has a chunk on
    its way; without stages they take turns in one place."""
    width = power_of_two(size, LEAST_QUERIES)
    chunks = max(1, 2 * (tile.stages - 1))
    values = tile.queries * width + chunks * CHUNK * width + tile.queries * CHUNK
    return int(dtype.itemsize) * values + SMALL_BYTES


def shared_bytes(device: torch.device) -> int:
    """What a program may ask a card for; in the interpreter anything."""
    if device.type != "cuda":
        return sys.maxsize
    which = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(which)["max_shared_mem"])
