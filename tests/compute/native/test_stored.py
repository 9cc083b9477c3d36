"""Weights over stored bytes: the same values without a copy, and nothing of a wrong size."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.compute.native import _native
from firsthand.compute.native.packing import Stored, packing_fingerprint
from firsthand.quant.formats import FloatFormat

pytestmark = pytest.mark.native

KINDS: dict[str, tuple[Any, ...]] = {
    "float32": (),
    "float16": (),
    "bfloat16": (),
    "channel": (),
    "grouped8": (32, True, False, 0),
    "grouped4": (32, True, True, 0),
}
N, K = 21, 70


def aligned(content: bytes, shift: int = 0) -> NDArray[np.uint8]:
    room = np.zeros(len(content) + 128 + shift, np.uint8)
    start = -room.ctypes.data % 64 + shift
    view = room[start : start + len(content)]
    view[:] = np.frombuffer(content, np.uint8)
    view.flags.writeable = False
    return view


def over(kind: str, memory: NDArray[np.uint8], n: int = N, k: int = K) -> _native.PackedWeight:
    group, half_scales, has_minimum, zero = KINDS[kind] or (0, False, False, 0)
    return _native.PackedWeight(kind, n, k, group, half_scales, has_minimum, zero, memory)


def filled(kind: str) -> _native.PackedWeight:
    random = np.random.default_rng(3)
    weight = _native.PackedWeight(kind, N, K, *KINDS[kind])
    groups = -(-K // 32)
    half = random.normal(size=(N, groups)).astype(np.float16)
    match kind:
        case "float32":
            weight.fill_float(0, random.normal(size=(N, K)).astype(np.float32))
        case "float16":
            weight.fill_float(0, random.normal(size=(N, K)).astype(np.float16))
        case "bfloat16":
            weight.fill_float(0, random.integers(0x3F00, 0x4000, (N, K)).astype(np.uint16))
        case "channel":
            codes = random.integers(-127, 128, (N, K)).astype(np.int8)
            weight.fill_channel(0, codes, random.uniform(1, 2, N).astype(np.float32))
        case "grouped8":
            weight.fill_grouped(0, random.integers(-127, 128, (N, K)).astype(np.int8), half, None)
        case "grouped4":
            weight.fill_grouped(0, random.integers(0, 16, (N, K)).astype(np.uint8), half, half)
    return weight


def stored(weight: _native.PackedWeight) -> bytes:
    pieces = Stored("w", FloatFormat("float32"), weight).pieces()
    content = b"".join(bytes(piece) for piece in pieces)
    assert len(content) == weight.stored_bytes
    return content


def decoded(weight: _native.PackedWeight) -> NDArray[np.float32]:
    out = np.zeros((N, K), np.float32)
    weight.decode_rows(np.arange(N, dtype=np.int32), out)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_stored_bytes_are_the_same_weight(kind: str) -> None:
    weight = filled(kind)
    content = stored(weight)
    again = over(kind, aligned(content))
    gc.collect()  # the memory is kept alive by the weight alone
    assert (again.n, again.k, again.num_bytes) == (N, K, weight.num_bytes)
    assert np.array_equal(decoded(again), decoded(weight))
    assert stored(again) == content


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_size_or_address_is_refused(kind: str) -> None:
    content = stored(filled(kind))
    for wrong in (content[:-1], content + b"\0", content[:64], content + bytes(64)):
        with pytest.raises(ValueError, match="wrong size"):
            over(kind, aligned(wrong))
    with pytest.raises(ValueError, match="aligned"):
        over(kind, aligned(content, shift=4))
    for n, k in ((1 << 31, K), (N, 1 << 23), (1 << 62, 1 << 62), (0, K), (-1, K), (N + 16, K)):
        with pytest.raises(ValueError, match="wrong size"):
            over(kind, aligned(content), n, k)


def test_what_is_only_read_is_not_filled() -> None:
    again = _native.PackedWeight("float32", N, K, stored=aligned(stored(filled("float32"))))
    with pytest.raises(ValueError, match="only read"):
        again.fill_float(0, np.zeros((N, K), np.float32))


def test_the_fingerprint_is_that_of_the_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = packing_fingerprint()
    assert first == packing_fingerprint()

    def moved(packed: _native.PackedWeight, row0: int, block: object) -> None:
        return None

    monkeypatch.setattr("firsthand.compute.native.packing.fill_rows", moved)
    assert packing_fingerprint() != first
