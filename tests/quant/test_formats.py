"""Formats: what a weight stands for, by hand, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.quant.formats import (
    BLOCK_BYTES,
    ChannelFormat,
    ChannelWeight,
    FloatFormat,
    FloatWeight,
    Format,
    GroupedFormat,
    GroupedWeight,
    decode,
    row_blocks,
)


def test_bfloat16_is_the_upper_half_of_a_float32() -> None:
    values = np.array([[0x3F80, 0xC000, 0x0001, 0x8000]], np.uint16)
    decoded = decode(FloatWeight(FloatFormat("bfloat16"), values))
    assert decoded.tolist() == [[1.0, -2.0, 2.0**-133, -0.0]]


def test_channel_by_hand() -> None:
    codes = np.array([[2, -3], [127, 0]], np.int8)
    weight = ChannelWeight(ChannelFormat(), codes, np.array([0.5, 2.0], np.float32))
    assert decode(weight).tolist() == [[1.0, -1.5], [254.0, 0.0]]


def test_grouped_by_hand_with_a_short_last_group() -> None:
    format = GroupedFormat(4, 2, "float16", has_minimum=True, zero=8)
    weight = GroupedWeight(
        format,
        codes=np.array([[8, 9, 0]], np.uint8),
        scales=np.array([[0.5, 2.0]], np.float16),
        minima=np.array([[10.0, -1.0]], np.float16),
    )
    assert decode(weight).tolist() == [[10.0, 10.5, -17.0]]


@pytest.mark.parametrize(
    ("format", "n", "k", "num_bytes"),
    [
        (FloatFormat("float32"), 3, 5, 60),
        (FloatFormat("bfloat16"), 3, 5, 30),
        (ChannelFormat(), 3, 5, 15 + 12),
        (GroupedFormat(4, 32, "float16", True), 3, 64, 3 * 2 * (16 + 4)),
        (GroupedFormat(8, 32, "float32", False), 3, 80, 3 * 3 * (32 + 4)),
    ],
)
def test_bytes(format: Format, n: int, k: int, num_bytes: int) -> None:
    assert format.num_bytes(n, k) == num_bytes


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 5000), st.integers(1, 2_000_000))
def test_blocks_of_rows_cover_each_row_once_and_stay_small(n: int, k: int) -> None:
    blocks = list(row_blocks(n, k))
    assert [row for a, b in blocks for row in range(a, b)] == list(range(n))
    assert all(b - a == 1 or 4 * k * (b - a) <= BLOCK_BYTES for a, b in blocks)
