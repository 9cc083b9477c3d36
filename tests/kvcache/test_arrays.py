"""The memory of keys and values: what is written is read, in every layout and type."""

from __future__ import annotations

from itertools import product
from typing import get_args

import numpy as np
import pytest

from firsthand.kvcache.arrays import KVArrays, KVLayout, KVType, to_int8
from firsthand.kvcache.paged import PagedStore
from firsthand.kvcache.store import KVStore

SIZES = {"float32": 4, "float16": 2, "int16": 2, "int8": 1}
BOUNDS = {"float32": 0.0, "float16": 2.0**-11, "int16": 1.5 / 32767, "int8": 0.5 / 127}


@pytest.mark.parametrize(("kv_dtype", "layout"), [*product(get_args(KVType), get_args(KVLayout))])
def test_what_is_written_is_read(kv_dtype: KVType, layout: KVLayout) -> None:
    rng = np.random.default_rng(5)
    arrays = KVArrays(2, 3, 8, num_slots=64, kv_dtype=kv_dtype, layout=layout)
    slots = np.array([0, 15, 16, 40, 63])
    keys, values = rng.normal(size=(2, 5, 3, 8)).astype(np.float32)
    arrays.layer(1).write(slots, keys, values)
    for wrote, read in zip((keys, values), arrays.layer(1).read(slots), strict=True):
        peak = np.abs(wrote).max(axis=-1, keepdims=True)
        assert (np.abs(read - wrote) <= BOUNDS[kv_dtype] * peak * 1.001).all()
    untouched = arrays.layer(1).read(np.array([1, 14, 17]))[0]
    assert not untouched.any() and not arrays.layer(0).read(slots)[0].any()
    scales = 2 * 2 * 3 * 4 if kv_dtype.startswith("int") else 0
    assert arrays.slot_bytes == 2 * 2 * 3 * 8 * SIZES[kv_dtype] + scales
    assert arrays.slot_bytes == 2 * arrays.layer(0).slot_bytes


def test_int8_of_nothing_and_of_no_number() -> None:
    """A row of zeros stays one; a NaN or an infinity is not rounded away, as in the kernels."""
    rows = [[0.0, 0.0], [2.0, -1.0], [np.nan, 1.0], [np.inf, 1.0], [1.0, -np.inf], [np.inf, np.nan]]
    codes, scales = to_int8(np.array(rows, np.float32))
    assert codes[0].tolist() == [0.0, 0.0] and scales[0] == 0
    assert codes[1].tolist() == [127.0, -64.0] and scales[1] == np.float32(2) / np.float32(127)
    assert np.isnan(scales[2:]).all()
    assert not codes[2:].any()


@pytest.mark.parametrize("layout", get_args(KVLayout))
def test_a_paged_store_copies_and_fills_one_block(layout: KVLayout) -> None:
    paged = PagedStore(2, 1, 4, num_blocks=4, block_size=32, kv_dtype="int8", layout=layout)
    store: KVStore = paged
    assert [store.block_start(block) for block in range(4)] == [0, 32, 64, 96]
    values = np.arange(32 * 4, dtype=np.float32).reshape(32, 1, 4) + 1
    for layer in range(2):
        store.layer(layer).write(np.arange(32, 64), values, -values)
    store.copy_block(1, 3)
    before = store.layer(1).read(np.arange(32, 64))
    store.fill_block(1, 0xFF)
    for copied, was in zip(store.layer(1).read(np.arange(96, 128)), before, strict=True):
        assert np.array_equal(copied, was)
    assert np.isnan(store.layer(0).read(np.arange(32, 64))[0]).all()
    assert not store.layer(0).read(np.arange(64, 96))[0].any()


@pytest.mark.parametrize("block_size", [0, 8, 24])
def test_a_block_is_a_whole_number_of_tiles(block_size: int) -> None:
    with pytest.raises(ValueError, match="16"):
        PagedStore(1, 1, 2, num_blocks=1, block_size=block_size)
