"""Attention with windows, caps and scales, and a mixture of experts, in the native executor.

Owns: what a row may not see, and that no cut changes a bit. The numbers are the torch executor's.
May not know: families. Read next: `test_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from firsthand.compute.native.executor import NativeExecutor
from firsthand.models.spec import ModelSpec
from tests.compute.native.micro import (
    FORMATS,
    MicroModel,
    batch,
    instruction_sets,
    run_whole,
    spec,
)

pytestmark = pytest.mark.native

WINDOWED: dict[str, dict[str, Any]] = {
    "one position": {"windows": (1, 1, 1)},
    "shorter than a chunk": {"windows": (20, None, 63)},
    "a chunk": {"windows": (64, 64, 64)},
    "longer": {"windows": (65, 100, 130)},
    "capped": {"score_cap": 1.5, "attention_scale": 0.4},
    "capped, with windows": {"score_cap": 2.0, "windows": (30, None, 70)},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Of torch: so small a model is faster without others."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(**changes: Any) -> ModelSpec:
    return spec(head_size=24, context_length=300, **changes)


@pytest.mark.torch
@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("name", WINDOWED)
def test_scores_are_the_formula_s(name: str, isa: str) -> None:
    pytest.importorskip("torch")
    from firsthand.compute.torch.executor import TorchExecutor

    model = MicroModel.random(small(**WINDOWED[name]), FORMATS["float32"])
    ids = np.random.default_rng(1).integers(0, model.spec.vocab_size, 230)
    native = NativeExecutor(threads=2, isa=isa)
    model.load(native, max_tokens=230)
    found = run_whole(native, model, ids)
    for attention in ("formula", "tiled", "fast"):
        reference = TorchExecutor(attention=attention)
        model.load(reference, max_tokens=230)
        wanted = run_whole(reference, model, ids)
        assert np.linalg.norm(found - wanted) <= 3e-6 * np.linalg.norm(wanted), attention


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", WINDOWED)
def test_no_cut_changes_a_bit(name: str, dtype: Any) -> None:
    model = MicroModel.random(small(**WINDOWED[name]), FORMATS["q4_1"])
    ids = np.random.default_rng(2).integers(0, model.spec.vocab_size, 200)
    executor, other = NativeExecutor(threads=1), NativeExecutor(threads=3)
    for each in (executor, other):
        model.load(each, max_tokens=200)
    wanted = run_whole(executor, model, ids, dtype=dtype)
    for chunks in ((63, 1, 1, 64, 71), (150, *[1] * 50), (7,) * 28 + (4,)):
        for each in (executor, other):
            found = run_whole(each, model, ids, chunks, dtype=dtype, block_size=16)
            np.testing.assert_array_equal(found, wanted)
    rows = run_whole(other, model, ids, (100, 100), dtype=dtype, layout="rows")
    np.testing.assert_array_equal(rows, wanted)


@pytest.mark.parametrize("layout", ["tiles", "rows"])
def test_model_6_a_window_of_4_sees_4(layout: Any) -> None:
    """What lies before it may be anything: position 51 sees 48 to 51, position 50 also 47."""
    model = MicroModel.random(spec(windows=(4, 4, 4)), FORMATS["float32"])
    executor = NativeExecutor(threads=2)
    model.load(executor)
    ids = np.random.default_rng(3).integers(0, model.spec.vocab_size, 60)
    wanted = run_whole(executor, model, ids)
    store = model.store(layout=layout, block_size=16)
    executor.run(batch(store, (1, 0, ids[:50])), store)
    own = [start // 16 for start in batch(store, (1, 0, ids)).block_starts[0]]

    def logits(start: int, stop: int) -> np.ndarray:
        return executor.run(batch(store, (1, start, ids[start:stop])), store).copy()

    np.testing.assert_array_equal(logits(50, 51), wanted[50:51])
    for block in own[:3]:  # positions 0 … 47
        store.fill_block(block, 0xFF)
    np.testing.assert_array_equal(logits(51, 60), wanted[51:60])
    assert np.isnan(logits(50, 51)).all()


def test_the_cap_is_precise() -> None:
    """c · tanh(s / c) to a few units in the last place, from tiny scores to huge ones."""
    pytest.importorskip("torch")
    from firsthand.compute.torch.executor import TorchExecutor

    for size in (1e-3, 1.0, 30.0, 1e4):
        model = MicroModel.random(
            spec(architecture="gemma2", logit_cap=2.5, num_layers=1), FORMATS["float32"]
        )
        model.vectors["model.norm.weight"] *= np.float32(size)
        ids = np.arange(60)
        executors: list[Any] = [NativeExecutor(threads=1), TorchExecutor(dtype="float64")]
        for each in executors:
            model.load(each)
        ours, exact = (run_whole(each, model, ids) for each in executors)
        assert np.abs(ours).max() <= 2.5
        error = np.abs(ours - exact) / np.abs(exact)
        assert np.median(error) < 1e-6
