"""Codes of a few bits, packed into 32-bit words, and float8: what other tools' files are made of.

Owns: the packing of GPTQ, AWQ and compressed-tensors files, and the values of float8.
May not know: files, tensor names, scales.
Read next: `weights/bundles.py`, which makes weights of these codes.

A row of codes is one stream of bits, the lowest first: code i has bits i · b … i · b + b − 1 of the
row's words, and may begin in one word and end in the next. Words are little-endian. That is how
compressed-tensors packs a row along K, and GPTQ a column along K; AWQ packs eight outputs into a
word in an order of its own.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

WORD_BITS: Final = 32
# Nibble i of a word holds the output of this number. Source: the AutoAWQ package, its `gemm` form.
AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)

Codes = NDArray[np.uint8]
Words = NDArray[np.uint32]


def num_words(num_codes: int, bits: int) -> int:
    """Words of a row."""
    return -(-num_codes * bits // WORD_BITS)


def unpack(words: NDArray[np.uint32] | NDArray[np.int32], bits: int, num_codes: int) -> Codes:
    """Rows of words (N, W) as codes (N, num_codes) of 1 to 8 bits."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if bits == 8:
        return octets[:, :num_codes]
    if bits == 4:
        pairs = np.empty((*octets.shape, 2), np.uint8)
        np.bitwise_and(octets, 15, out=pairs[..., 0])
        np.right_shift(octets, 4, out=pairs[..., 1])
        return pairs.reshape(len(words), -1)[:, :num_codes]
    stream = np.unpackbits(octets, axis=1, count=num_codes * bits, bitorder="little")
    places = stream.reshape(len(words), num_codes, bits)
    return np.packbits(places, axis=2, bitorder="little")[..., 0]


def pack(codes: Codes, bits: int) -> Words:
    """The inverse: codes (N, K) below 2^bits as words (N, ceil(K · bits / 32))."""
    n, k = codes.shape
    places = np.unpackbits(codes[..., None], axis=2, count=bits, bitorder="little")
    octets = np.zeros((n, 4 * num_words(k, bits)), np.uint8)
    packed = np.packbits(places.reshape(n, k * bits), axis=1, bitorder="little")
    octets[:, : packed.shape[1]] = packed
    return octets.view(np.uint32)


def unpack_awq(words: NDArray[np.uint32] | NDArray[np.int32]) -> Codes:
    """Words (R, W) of AWQ as 4-bit codes (R, 8 · W), one column per output."""
    nibbles = unpack(words, 4, 8 * words.shape[1]).reshape(*words.shape, 8)
    return nibbles[..., np.argsort(AWQ_ORDER)].reshape(len(words), -1)


def float8_to_float32(raw: NDArray[np.uint8], *, exponent_bits: int = 4) -> NDArray[np.float32]:
    """Exact. Four exponent bits (e4m3, no infinity; 0x7F and 0xFF are NaN) or five (e5m2, as IEEE
    754 has it). Source: arXiv 2209.05433, table 1."""
    if exponent_bits == 5:
        return (raw.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    size = np.where(
        exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7)
    )
    values = np.where(code & 127 == 127, np.nan, np.where(code < 128, size, -size))
    return values.astype(np.float32)[raw]
