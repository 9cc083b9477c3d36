"""Blocks of GGUF files: the values are, bit for bit, those of the library that owns the format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from firsthand.quant import ggml
from firsthand.quant.formats import FloatFormat, FloatWeight, GroupedFormat, GroupedWeight, decode

# Kind: values per block, bytes per block, where its float16 fields begin.
BLOCKS = {
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q8_0": (32, 34, (0,)),
    "Q2_K": (256, 84, (80, 82)),
    "Q3_K": (256, 110, (108,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
}
FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
# Zeros of both signs, the smallest and the largest denormal, the largest number, plain ones.
CORNERS = np.array([0.0, -0.0, 6e-8, -6e-8, 6.097e-5, 65504.0, -65504.0, 1.0, -0.013], np.float16)


def made_rows(kind: str, n: int, num_blocks: int, seed: int) -> NDArray[np.uint8]:
    """Rows of random codes whose float16 fields are finite, corner cases among them."""
    rng = np.random.default_rng(seed)
    _, size, halves = BLOCKS[kind]
    rows = rng.integers(0, 256, (n, num_blocks, size), np.uint8)
    for start in halves:
        plain = rng.normal(0, 0.02, (n, num_blocks)).astype(np.float16)
        chosen = np.where(
            rng.random((n, num_blocks)) < 0.4, rng.choice(CORNERS, plain.shape), plain
        )
        rows[..., start : start + 2] = chosen[..., None].view(np.uint8)
    return rows.reshape(n, num_blocks * size)


def same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> bool:
    return ours.shape == theirs.shape and bool(
        np.array_equal(ours.view(np.uint32), theirs.astype(np.float32).view(np.uint32))
    )


@pytest.mark.oracle
@pytest.mark.parametrize("kind", BLOCKS)
@settings(deadline=None, max_examples=20)
@given(n=st.integers(1, 9), num_blocks=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_n_5_made_blocks_decode_bit_for_bit(kind: str, n: int, num_blocks: int, seed: int) -> None:
    import gguf

    rows = made_rows(kind, n, num_blocks, seed)
    ours = decode(ggml.read_rows(kind, rows, num_blocks * BLOCKS[kind][0]))
    assert same_bits(ours, gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind]))


@pytest.mark.oracle
@pytest.mark.parametrize("kind", FLOATS)
def test_floats_decode_bit_for_bit(kind: str) -> None:
    import gguf

    values = np.random.default_rng(3).normal(0, 1, (5, 48)).astype(np.float32)
    rows = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8)
    ours = decode(ggml.read_rows(kind, rows, 48))
    assert same_bits(ours, gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind]))


def check_file(path: Path, max_rows: int) -> set[str]:
    """Compare the first rows of every tensor of a real file; the kinds that were met."""
    import gguf

    from firsthand.weights.gguf import open_gguf

    checkpoint = open_gguf(path)
    for name, tensor in checkpoint.tensors.items():
        k = tensor.shape[-1]
        row_bytes = ggml.bytes_per_row(tensor.kind, k)
        rows = np.array(checkpoint.raw(name).reshape(-1, row_bytes)[:max_rows])
        theirs = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[tensor.kind])
        assert same_bits(decode(ggml.read_rows(tensor.kind, rows, k)), theirs), name
    checkpoint.close()
    return {tensor.kind for tensor in checkpoint.tensors.values()}


@pytest.mark.oracle
@pytest.mark.model
def test_real_file_of_4_bit_blocks(smollm2_path: Path) -> None:
    assert check_file(smollm2_path, 512) == {"F32", "Q4_1", "Q8_0"}


@pytest.mark.oracle
@pytest.mark.model
def test_real_file_of_k_quants(gemma3_path: Path) -> None:
    assert check_file(gemma3_path, 512) >= {"Q4_K", "Q6_K"}


@pytest.mark.parametrize("kind", BLOCKS)
def test_values_keep_the_promises_of_their_format(kind: str) -> None:
    block_values, size, _ = BLOCKS[kind]
    k = 2 * block_values
    weight = ggml.read_rows(kind, made_rows(kind, 3, 2, 7), k)
    assert isinstance(weight, GroupedWeight)
    assert weight.format == ggml.format_of(kind)
    format = weight.format
    assert weight.codes.shape == (3, k)
    assert weight.scales.shape == (3, k // format.group)
    assert weight.scales.dtype == np.dtype(format.scale_dtype)
    assert weight.codes.dtype == (np.uint8 if format.bits == 4 else np.int8)
    assert format.bits == 8 or int(weight.codes.max()) <= 15
    assert (weight.minima is not None) == format.has_minimum
    if weight.minima is not None:
        assert weight.minima.shape == weight.scales.shape
        assert weight.minima.dtype == weight.scales.dtype
    assert ggml.bytes_per_row(kind, k) == 2 * size


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_files_with_float16_scales_are_held_in_as_many_bytes(kind: str) -> None:
    assert ggml.format_of(kind).num_bytes(7, 320) == 7 * ggml.bytes_per_row(kind, 320)


def test_formats_that_the_executors_were_promised() -> None:
    assert ggml.format_of("Q4_0") == GroupedFormat(4, 32, "float16", False, zero=8)
    assert ggml.format_of("Q4_1") == GroupedFormat(4, 32, "float16", True)
    assert ggml.format_of("Q8_0") == GroupedFormat(8, 32, "float16", False)
    assert ggml.format_of("Q4_K") == GroupedFormat(4, 32, "float32", True)
    assert ggml.format_of("BF16") == FloatFormat("bfloat16")


def test_rows_are_independent_of_their_block() -> None:
    rows = made_rows("Q6_K", 6, 2, 11)
    whole = decode(ggml.read_rows("Q6_K", rows, 512))
    parts = [decode(ggml.read_rows("Q6_K", rows[a : a + 2], 512)) for a in (0, 2, 4)]
    assert same_bits(whole, np.concatenate(parts))


def test_floats_at_an_odd_byte_come_out_aligned() -> None:
    values = np.arange(6, dtype=np.float32)
    shifted = np.concatenate([np.zeros(1, np.uint8), values.view(np.uint8)])[1:]
    weight = ggml.read_rows("F32", shifted.reshape(2, 12), 3)
    assert isinstance(weight, FloatWeight)
    assert weight.values.flags.aligned
    assert np.array_equal(weight.values, values.reshape(2, 3))


def test_floats_are_not_copied_when_they_need_not_be() -> None:
    raw = np.zeros((2, 16), np.uint8)
    weight = ggml.read_rows("F32", raw, 4)
    assert isinstance(weight, FloatWeight)
    assert np.shares_memory(weight.values, raw)


def test_width_that_is_no_multiple_of_the_block_names_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"80 .* 32 of Q4_1"):
        ggml.bytes_per_row("Q4_1", 80)
    with pytest.raises(ValueError, match=r"288 .* 256 of Q6_K"):
        ggml.bytes_per_row("Q6_K", 288)


def test_rows_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(ValueError, match="byte shape"):
        ggml.read_rows("Q8_0", np.zeros((2, 33), np.uint8), 32)


@pytest.mark.parametrize("kind", ["F64", "I32", "IQ4_XS", "F8_E4M3", "q4_0", ""])
def test_unknown_kinds_are_refused_by_name(kind: str) -> None:
    assert not ggml.is_known(kind)
    with pytest.raises(ValueError, match=f"format {kind} is not"):
        ggml.format_of(kind)
