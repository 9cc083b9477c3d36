"""Floats to integer formats: error bounds, and the inputs that break naive formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from firsthand.quant.formats import decode
from firsthand.quant.round import (
    channel_scales,
    group_scales,
    grouped_scale_dtype,
    to_channel_int8,
    to_grouped,
)

LARGEST = float(np.float32(2.0**126))
FINITE = st.floats(-LARGEST, LARGEST, width=32)
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, max_side=70)
BITS: st.SearchStrategy[Literal[4, 8]] = st.sampled_from([4, 8])
MATRICES = hnp.arrays(np.float32, SHAPES, elements=FINITE)


def normal(n: int, k: int, seed: int = 0, spread: float = 0.05) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, spread, (n, k)).astype(np.float32)


def test_channel_codes_by_hand() -> None:
    """127 / 127 = 1 per step, so halves round to even: 0.5 → 0, 1.5 → 2, 2.5 → 2."""
    weight = to_channel_int8(np.array([[127, 0.5, 1.5, 2.5, -2.5, -126.4]], np.float32))
    assert weight.scales.tolist() == [1.0]
    assert weight.codes.tolist() == [[127, 0, 2, 2, -2, -126]]


def test_grouped_codes_by_hand() -> None:
    weight = to_grouped(np.array([[-1, 14, 0.5, 1.5, 3.4]], np.float32), 4, 32)
    assert weight.minima is not None
    assert (weight.scales.tolist(), weight.minima.tolist()) == ([[1.0]], [[-1.0]])
    assert weight.codes.tolist() == [[0, 15, 2, 2, 4]]
    assert str(weight.format) == "int4/32+min"


@settings(deadline=None, max_examples=60)
@given(MATRICES)
def test_channel_error_is_at_most_half_a_step(values: NDArray[np.float32]) -> None:
    weight = to_channel_int8(values)
    assert (weight.scales > 0).all() and np.isfinite(weight.scales).all()
    error = np.abs(decode(weight).astype(np.float64) - values)
    assert (error <= weight.scales.astype(np.float64)[:, None] * 0.50002).all()


@settings(deadline=None, max_examples=60)
@given(MATRICES, BITS, st.sampled_from([16, 32]))
def test_grouped_error_is_about_half_a_step(
    values: NDArray[np.float32], bits: Literal[4, 8], group: int
) -> None:
    """float16 scales may move the ends of a group by an eighth of a step more."""
    weight = to_grouped(values, bits, group)
    step = weight.scales.astype(np.float64)[:, np.arange(values.shape[1]) // group]
    error = np.abs(decode(weight).astype(np.float64) - values)
    ends = np.abs(values).max() * 2.0**-22  # float32's own rounding of minimum + step · code
    assert (error <= step * 0.63 + ends).all()


def test_quant_1_rows_of_zeros_decode_to_zero() -> None:
    values = normal(4, 64)
    alone = to_channel_int8(values)
    values[1] = 0.0
    values[2] = -0.0
    weight = to_channel_int8(values)
    assert weight.scales[1] == weight.scales[2] == 1.0
    assert not decode(weight)[1:3].any()
    assert np.array_equal(weight.codes[[0, 3]], alone.codes[[0, 3]])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_quant_1_groups_of_zeros_decode_to_zero(bits: Literal[4, 8], zero: float) -> None:
    values = normal(2, 96)
    alone = to_grouped(values, bits, 32)
    values[0, 32:64] = zero
    weight = to_grouped(values, bits, 32)
    decoded = decode(weight)
    assert not decoded[0, 32:64].any()
    assert np.array_equal(decoded[1], decode(alone)[1])
    whole = decode(to_grouped(np.full((3, 40), zero, np.float32), bits, 32))
    assert not whole.any() and np.isfinite(whole).all()


def test_quant_2_a_tiny_row_keeps_its_values() -> None:
    values = normal(2, 64)
    values[0] = np.linspace(1e-7, 1e-6, 64) * np.where(np.arange(64) % 2, 1, -1)
    for weight in (to_channel_int8(values), to_grouped(values, 4, 32), to_grouped(values, 8, 32)):
        assert (weight.scales > 0).all()
        largest = np.abs(values[0]).argmax()
        assert abs(decode(weight)[0, largest] / values[0, largest] - 1) < 0.01
        assert len(np.unique(weight.codes[0])) > 8


def test_quant_2_scales_never_vanish() -> None:
    weight = to_channel_int8(np.array([[1e-45, 0.0], [1e-39, -1e-40]], np.float32))
    assert (weight.scales >= np.finfo(np.float32).tiny).all()


@pytest.mark.parametrize(("k", "groups"), [(80, 3), (20, 1), (33, 2)])
@pytest.mark.parametrize("bits", [4, 8])
def test_quant_3_the_last_group_may_be_short(k: int, groups: int, bits: Literal[4, 8]) -> None:
    values = normal(3, k)
    values[:, -1] = 3.0  # the last group's own extreme must not touch the others
    weight = to_grouped(values, bits, 32)
    assert weight.codes.shape == (3, k)
    assert weight.scales.shape == (3, groups)
    step = weight.scales.astype(np.float32)[:, np.arange(k) // 32]
    assert (np.abs(decode(weight) - values) <= 0.63 * step).all()


def test_equal_values_are_exact() -> None:
    values = np.repeat(np.array([[0.1, -7.3, 1e-9]], np.float32), 32, axis=1)
    weight = to_grouped(values, 4, 32)
    assert np.array_equal(decode(weight), values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (normal(4, 64), "float16"),
        (normal(4, 64, spread=1e-3), "float16"),
        (normal(4, 64, spread=1e-8), "float32"),
        (normal(4, 64, spread=1e7), "float32"),
        (normal(4, 64) + np.float32(1000), "float32"),
        (np.zeros((1, 32), np.float32), "float16"),
    ],
)
def test_scale_type_follows_the_values(values: NDArray[np.float32], expected: str) -> None:
    assert grouped_scale_dtype(values, 4, 32) == expected
    assert to_grouped(values, 4, 32).scales.dtype == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**127])
def test_s_9_not_a_number_is_refused_by_row(bad: float) -> None:
    values = normal(5, 64)
    values[3, 17] = bad
    with pytest.raises(ValueError, match="row 3"):
        to_channel_int8(values)
    with pytest.raises(ValueError, match="row 3"):
        to_grouped(values, 4, 32)
    with pytest.raises(ValueError, match="row 3"):
        to_grouped(values, 8, 32)


def test_rows_do_not_depend_on_their_block() -> None:
    values = normal(10, 96)
    whole = to_channel_int8(values)
    parts = [to_channel_int8(values[a : a + 3]) for a in range(0, 10, 3)]
    assert np.array_equal(whole.codes, np.concatenate([p.codes for p in parts]))
    grouped = to_grouped(values, 4, 32, "float16")
    blocks = [to_grouped(values[a : a + 3], 4, 32, "float16") for a in range(0, 10, 3)]
    assert np.array_equal(grouped.codes, np.concatenate([p.codes for p in blocks]))


def scale_shapes() -> Iterator[tuple[int, ...]]:
    values = normal(4, 80)
    yield channel_scales(values).shape
    yield from (part.shape for part in group_scales(values, 4, 32))


def test_shapes_of_scales() -> None:
    assert list(scale_shapes()) == [(4,), (4, 3), (4, 3)]
