"""Folders as other tools quantise them, made of known codes, scales and zeros.

Owns: each layout, written straight from its description, value by value.
May not know: our readers. Read next: `test_quantized.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firsthand.weights.writing import TensorToWrite, write_safetensors

Array = NDArray[Any]
KINDS = {
    "float32": "F32",
    "float16": "F16",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
    "uint8": "F8_E4M3",
    "uint16": "BF16",
}


def write_folder(folder: Path, tensors: dict[str, Array], setting: object) -> Path:
    """`tensors` and a config that says how they are quantised, and nothing of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": setting}))
    write_safetensors(folder / "model.safetensors", [to_write(n, v) for n, v in tensors.items()])
    return folder


def to_write(name: str, values: Array) -> TensorToWrite:
    content = np.ascontiguousarray(values)
    data = content.reshape(-1).view(np.uint8).data
    return TensorToWrite(name, KINDS[str(values.dtype)], values.shape, [data])


def made(n: int, k: int, group: int, bits: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """codes (N, K) and zeros (N, G) below 2^bits, scales (N, G) float16; no zero is 0."""
    draw = np.random.default_rng(seed)
    groups = -(-k // group)
    codes = draw.integers(0, 1 << bits, (n, k))
    zeros = draw.integers(1, 1 << bits, (n, groups))
    scales = draw.uniform(0.001, 0.02, (n, groups)).astype(np.float16)
    return codes, scales, zeros


def values_of(codes: Array, scales: Array, zeros: Array, groups: Array) -> Array:
    """scale · (code − zero), exactly: float64 holds the product of 11 and 9 bits."""
    return (codes - zeros[:, groups]) * scales.astype(np.float64)[:, groups]


def into_words(codes: Array, bits: int) -> Array:
    """Codes (K, N) as words (K · bits / 32, N): code i begins at bit i · bits of its column."""
    k, n = codes.shape
    words = np.zeros((-(-k * bits // 32), n), np.int64)
    for i in range(k):
        for bit in range(bits):
            at = i * bits + bit
            words[at // 32] |= (codes[i] >> bit & 1) << at % 32
    return words.astype(np.uint32).view(np.int32)


def gptq(
    stem: str, codes: Array, scales: Array, zeros: Array, groups: Array, bits: int, minus: int
) -> dict[str, Array]:
    return {
        f"{stem}.qweight": into_words(codes.T, bits),
        f"{stem}.qzeros": np.ascontiguousarray(into_words(zeros - minus, bits).T),
        f"{stem}.scales": np.ascontiguousarray(scales.T),
        f"{stem}.g_idx": groups.astype(np.int32),
    }


def awq(stem: str, codes: Array, scales: Array, zeros: Array) -> dict[str, Array]:
    return {
        f"{stem}.qweight": _awq_words(codes.T),
        f"{stem}.qzeros": _awq_words(zeros.T),
        f"{stem}.scales": np.ascontiguousarray(scales.T),
    }


def _awq_words(codes: Array) -> Array:
    """(K, N) as (K, N / 8): eight neighbours in a word, in the order 0 2 4 6 1 3 5 7."""
    k, n = codes.shape
    words = np.zeros((k, n // 8), np.int64)
    for nibble, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        words |= codes[:, output::8].astype(np.int64) << 4 * nibble
    return words.astype(np.uint32).view(np.int32)
