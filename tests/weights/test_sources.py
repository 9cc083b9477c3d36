"""A tensor as rows of a weight: row order, independence of blocks, formats, damaged numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from firsthand.errors import CheckpointError
from firsthand.quant import ggml
from firsthand.quant import round as rounding
from firsthand.quant.formats import WeightSource, decode
from firsthand.weights.checkpoint import FileIdentity, TensorInfo
from firsthand.weights.sources import FileSource, Quantization, open_source, read_vector


@dataclass
class OneTensor:
    """A checkpoint of one tensor, called `t`."""

    tensors: Mapping[str, TensorInfo]
    data: NDArray[np.uint8]
    releases: int = 0
    path: str = "fake"
    form: Literal["safetensors", "gguf"] = "gguf"
    files: tuple[FileIdentity, ...] = ()

    @property
    def config(self) -> Mapping[str, Any]:
        return {}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self.data

    def release(self, name: str) -> None:
        self.releases += 1

    def close(self) -> None: ...


def checkpoint_of(kind: str, shape: tuple[int, ...], raw: NDArray[Any]) -> OneTensor:
    data = np.ascontiguousarray(raw).view(np.uint8).reshape(-1)
    return OneTensor({"t": TensorInfo("t", shape, kind, data.size, "fake", 0)}, data)


def file_source(
    kind: str, raw: NDArray[Any], n: int, k: int, heads: int | None = None, name: str = "w"
) -> FileSource:
    checkpoint = checkpoint_of(kind, (n, k), raw)
    info = checkpoint.tensors["t"]
    return FileSource(checkpoint, info, name, (n, k), ggml.format_of(kind), heads)


def normal(n: int, k: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 0.05, (n, k)).astype(np.float32)


def blocks_of(kind: str, n: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random codes; Q4_1 and Q8_0 begin with a float16 scale (and minimum): made finite."""
    rows = np.random.default_rng(seed).integers(0, 256, (n, ggml.bytes_per_row(kind, k)), np.uint8)
    size = ggml.bytes_per_row(kind, 32)
    halves = rows.reshape(n, -1, size)[..., : 4 if kind == "Q4_1" else 2]
    halves[...] = np.full(halves.shape[-1] // 2, 0.01, np.float16).view(np.uint8)
    return rows


def interleaved(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """By hand, one row at a time: the first half of a head goes to its even places."""
    size = len(rows) // heads
    out = np.empty_like(rows)
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = rows[head * size + i]
            out[head * size + 2 * i + 1] = rows[head * size + size // 2 + i]
    return out


def same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_interleaved_rows_by_hand() -> None:
    rows = np.arange(8, dtype=np.float32)[:, None]  # two heads of four
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    source = file_source("F32", interleaved(rows, 2), 8, 1, heads=2)
    assert decode(source.rows(0, 8))[:, 0].tolist() == list(range(8))


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("heads", [1, 3])
def test_interleaving_is_undone_without_touching_a_row(kind: str, heads: int) -> None:
    raw = normal(24, 64).view(np.uint8) if kind == "F32" else blocks_of(kind, 24, 64)
    plain = file_source(kind, raw, 24, 64)
    undone = file_source(kind, interleaved(raw, heads), 24, 64, heads)
    assert same(decode(undone.rows(0, 24)), decode(plain.rows(0, 24)))


def test_interleaving_of_a_bias_is_undone() -> None:
    bias = normal(1, 24)[0]
    checkpoint = checkpoint_of("F32", (24,), interleaved(bias, 3))
    assert same(read_vector(checkpoint, checkpoint.tensors["t"], 3), bias)
    assert not same(read_vector(checkpoint, checkpoint.tensors["t"]), bias)


@settings(deadline=None, max_examples=80)
@given(
    kind=st.sampled_from(["F32", "F16", "Q4_1", "Q8_0"]),
    heads=st.sampled_from([None, 1, 3]),
    quantization=st.sampled_from(["auto", "none", "int8", "int4"]),
    cuts=st.lists(st.integers(0, 24), max_size=5),
)
def test_rows_do_not_depend_on_the_cut(
    kind: str, heads: int | None, quantization: Quantization, cuts: list[int]
) -> None:
    if kind == "F32":
        raw: NDArray[Any] = normal(24, 64)
    else:
        raw = normal(24, 64).astype(np.float16) if kind == "F16" else blocks_of(kind, 24, 64)
    source: WeightSource = open_source(file_source(kind, raw, 24, 64, heads), quantization)
    whole = decode(source.rows(0, 24))
    bounds = [0, *sorted(cuts), 24]
    parts = [decode(source.rows(a, b)) for a, b in pairwise(bounds)]
    assert same(np.concatenate(parts), whole)


TABLE: list[tuple[str, Quantization, str, str]] = [
    ("F32", "auto", "int8/channel", "int8/channel"),
    ("F16", "auto", "int8/channel", "int8/channel"),
    ("Q4_1", "auto", "int4/32+min", "int4/32+min"),
    ("Q8_0", "auto", "int8/32", "int8/32"),
    ("F32", "none", "float32", "float32"),
    ("F16", "none", "float16", "float16"),
    ("BF16", "none", "bfloat16", "bfloat16"),
    ("Q4_1", "none", "float32", "float32"),
    ("F32", "int8", "int8/channel", "int8/channel"),
    ("Q4_1", "int8", "int8/channel", "int8/channel"),
    ("Q8_0", "int8", "int8/32", "int8/32"),
    ("F32", "int4", "int4/32+min", "int8/channel"),
    ("Q4_1", "int4", "int4/32+min", "int4/32+min"),
    ("Q8_0", "int4", "int4/32+min", "int8/32"),
]


@pytest.mark.parametrize(("kind", "quantization", "elsewhere", "in_head"), TABLE)
def test_format_held(kind: str, quantization: Quantization, elsewhere: str, in_head: str) -> None:
    raw = np.zeros((4, ggml.bytes_per_row(kind, 64)), np.uint8)
    for is_head, expected in ((False, elsewhere), (True, in_head)):
        source = open_source(file_source(kind, raw, 4, 64), quantization, is_head=is_head)
        assert str(source.format) == expected
        assert source.rows(0, 4).format == source.format


@pytest.mark.parametrize("quantization", ["auto", "none"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_blocks_lose_nothing(kind: str, quantization: Quantization) -> None:
    raw = blocks_of(kind, 8, 64)
    source = open_source(file_source(kind, raw, 8, 64), quantization)
    assert same(decode(source.rows(0, 8)), decode(ggml.read_rows(kind, raw, 64)))


def test_four_bit_scales_are_of_one_type_in_a_matrix() -> None:
    """One tiny row far down decides for the whole: asked before the first row is handed out."""
    values = normal(3000, 256)
    narrow = open_source(file_source("F32", values, 3000, 256), "int4")
    values[2999] *= np.float32(1e-7)
    wide = open_source(file_source("F32", values, 3000, 256), "int4")
    assert narrow.rows(0, 1).format == narrow.format != wide.format == wide.rows(0, 1).format


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_1 scale", "Q4_1 minimum", "Q8_0 scale"])
@pytest.mark.parametrize("quantization", ["auto", "none", "int8", "int4"])
def test_s_9_damaged_numbers_are_refused_by_name(
    bad: float, kind: str, quantization: Quantization
) -> None:
    kind, _, place = kind.partition(" ")
    if place:
        raw = blocks_of(kind, 8, 64)
        start = 2 if place == "minimum" else 0
        raw[5, start : start + 2] = np.array([bad], np.float16).view(np.uint8)
    elif kind == "BF16":
        raw = np.zeros((8, 64), np.uint16).view(np.uint8)
        raw[5, 6:8] = np.array([bad], np.float32).view(np.uint8)[2:]
    else:
        values = normal(8, 64).astype(np.float32 if kind == "F32" else np.float16)
        values[5, 3] = bad
        raw = values.view(np.uint8)
    with pytest.raises(CheckpointError, match="'t': holds a NaN or an infinity"):
        open_source(file_source(kind, raw, 8, 64), quantization).rows(0, 8)
    assert file_source(kind, raw, 8, 64).rows(0, 5).format  # the rows before it are sound


def test_values_too_large_to_round_are_refused_by_name() -> None:
    values = np.full((2, 32), 1e38, np.float32)
    for quantization in ("int8", "int4"):
        with pytest.raises(CheckpointError, match=r"'t': .*2\^126"):
            open_source(file_source("F32", values, 2, 32), quantization).rows(0, 2)


def test_rows_outside_the_matrix_are_refused() -> None:
    source = file_source("F32", normal(4, 8), 4, 8)
    for start, stop in ((-1, 2), (0, 5), (3, 2)):
        with pytest.raises(ValueError, match="of 4"):
            source.rows(start, stop)


def test_int8_is_what_the_formula_gives() -> None:
    values = normal(8, 64)
    source = open_source(file_source("F32", values, 8, 64), "int8")
    assert same(decode(source.rows(0, 8)), decode(rounding.to_channel_int8(values)))
