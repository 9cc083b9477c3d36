"""Packed codes against compressed-tensors, whose form the packing is; float8 against torch.

Owns: both comparisons. May not know: scales. Read next: `tests/weights/test_quantized.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from firsthand.quant import bits as packing


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("k", [1, 31, 32, 80, 97])
def test_a_packed_row_is_unpacked(bits: int, k: int) -> None:
    codes = np.random.default_rng(bits * k).integers(0, 1 << bits, (5, k), dtype=np.uint8)
    words = packing.pack(codes, bits)
    assert words.shape == (5, packing.num_words(k, bits))
    assert np.array_equal(packing.unpack(words, bits, k), codes)


@pytest.mark.oracle
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_words_are_those_of_compressed_tensors(bits: int) -> None:
    torch = pytest.importorskip("torch")
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (7, 80), dtype=np.uint8)
    signed = codes.astype(np.int16) - (1 << bits - 1)
    theirs = helpers.pack_to_int32(torch.from_numpy(signed.astype(np.int8)), bits)
    assert np.array_equal(packing.pack(codes, bits).view(np.int32), theirs.numpy())


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "exponent_bits"), [("float8_e4m3fn", 4), ("float8_e5m2", 5)])
def test_float8_has_torchs_values(name: str, exponent_bits: int) -> None:
    torch = pytest.importorskip("torch")
    raw = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(raw).view(getattr(torch, name)).to(torch.float32).numpy()
    ours = packing.float8_to_float32(raw, exponent_bits=exponent_bits)
    assert np.array_equal(ours, theirs, equal_nan=True)


def test_awq_has_eight_outputs_in_its_own_order() -> None:
    """Nibble i of the word, from the lowest, is the output that the order names."""
    word = np.array([[0x76543210]], np.uint32)
    assert packing.unpack_awq(word).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]
