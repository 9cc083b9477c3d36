"""The contiguous store: sizes, addresses, moves, and that reserving is not filling."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from firsthand.kvcache.contiguous import SPARE, ContiguousStore
from firsthand.kvcache.store import KVStore
from firsthand.processes import resident_bytes


def test_sizes_and_addresses() -> None:
    store: KVStore = ContiguousStore(2, 3, 8, num_slots=128, max_tokens=20)
    assert (store.block_size, store.num_blocks) == (32, 4)
    assert [store.block_start(block) for block in range(4)] == [0, 32, 64, 96]
    assert store.num_bytes == 2 * 2 * (128 + 32) * 3 * (8 * 2 + 4)  # one run more; int16 has scales
    assert store.resident_bytes(1) == 2 * 2 * 3 * (8 * 2 + 4)
    assert store.resident_bytes(160) == store.num_bytes


def test_another_can_say_where_a_run_begins() -> None:
    places = {0: 48, 1: 0}
    store = ContiguousStore(1, 1, 2, num_slots=64, max_tokens=32)
    store.follow(lambda block_id: places[block_id])
    assert [store.block_start(block) for block in (0, 1, SPARE)] == [48, 0, 64]


def test_slots_are_moved_also_where_they_overlap() -> None:
    store = ContiguousStore(2, 1, 2, num_slots=64, max_tokens=64, kv_dtype="float32")
    values = np.arange(48 * 2, dtype=np.float32).reshape(48, 1, 2)
    slots = np.arange(16, 64)
    for layer in range(2):
        store.layer(layer).write(slots, values + layer, values - layer)
    store.move_slots(16, 0, 48)
    for layer in range(2):
        keys, found = store.layer(layer).read(slots - 16)
        assert np.array_equal(keys, values + layer)
        assert np.array_equal(found, values - layer)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")
def test_reserving_a_gibibyte_touches_none_of_it() -> None:
    before = resident_bytes(os.getpid())
    store = ContiguousStore(1, 16, 62, num_slots=2**17, max_tokens=2**17)
    after = resident_bytes(os.getpid())
    assert before is not None and after is not None
    grown_bytes = after - before
    assert store.num_bytes == 2**30
    assert grown_bytes < store.num_bytes // 16
