"""The contiguous store: sizes, addresses, and that reserving is not filling."""

from __future__ import annotations

import resource
import sys

import numpy as np
import pytest

from firsthand.kvcache.contiguous import ContiguousStore, KVType
from firsthand.kvcache.store import KVStore


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("float32", 4)])
def test_sizes_and_addresses(dtype: KVType, size: int) -> None:
    store: KVStore = ContiguousStore(2, 3, 8, num_sequences=4, max_tokens=16, dtype=dtype)
    assert (store.block_size, store.num_blocks) == (16, 4)
    assert [store.block_start(block) for block in range(4)] == [0, 16, 32, 48]
    assert store.num_bytes == 2 * 2 * 64 * 3 * 8 * size
    assert store.dtype == np.dtype(dtype)
    for layer in range(2):
        for array in (store.keys(layer), store.values(layer)):
            assert array.shape == (64, 3, 8)
            assert array.flags.c_contiguous
            assert array.dtype == store.dtype


def test_it_gives_the_memory_itself() -> None:
    store = ContiguousStore(1, 1, 2, num_sequences=1, max_tokens=4)
    store.keys(0)[3] = 7
    assert store.keys(0)[3].tolist() == [[7.0, 7.0]]
    assert not np.shares_memory(store.keys(0), store.values(0))


def test_used_bytes_follow_the_tokens() -> None:
    store = ContiguousStore(3, 2, 4, num_sequences=2, max_tokens=8, dtype="float32")
    assert store.resident_bytes(1) == 2 * 3 * 2 * 4 * 4
    assert store.resident_bytes(16) == store.num_bytes
    assert store.resident_bytes(0) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_reserving_a_gibibyte_touches_none_of_it() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = ContiguousStore(1, 16, 64, num_sequences=2, max_tokens=2**17)
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert store.num_bytes == 2**30
    assert grown_bytes < store.num_bytes // 16
