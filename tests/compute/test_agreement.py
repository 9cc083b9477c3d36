"""Native and torch executors compute the same model: every format, every attention."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from firsthand.compute.native.executor import NativeExecutor
from firsthand.compute.torch.attention import AttentionName
from firsthand.compute.torch.executor import TorchExecutor
from tests.compute.native.micro import FORMATS, MicroModel, error_of, run_whole, spec

pytestmark = [pytest.mark.native, pytest.mark.torch]


def relative(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str) -> None:
    model = MicroModel.random(spec(attention_bias=True, mlp_bias=True), FORMATS[name])
    ids = np.random.default_rng(1).integers(0, model.spec.vocab_size, 130)
    native, reference = NativeExecutor(threads=2), TorchExecutor()
    for executor in (native, reference):
        model.load(executor, max_tokens=130)
    got = run_whole(native, model, ids, (100, 30))
    want = run_whole(reference, model, ids)
    assert relative(got, want) <= 2 * error_of(name)


def test_rows_asked_for_afterwards() -> None:
    model = MicroModel.random(spec(), FORMATS["float32"])
    ids = np.random.default_rng(4).integers(0, model.spec.vocab_size, 30)
    native, reference = NativeExecutor(threads=2), TorchExecutor()
    for executor in (native, reference):
        model.load(executor)
        run_whole(executor, model, ids)
    rows = np.array([29, 0, 7], dtype=np.int32)
    assert relative(native.logits(rows), reference.logits(rows)) <= 2e-6
    assert relative(native.hidden(rows), reference.hidden(rows)) <= 2e-6


@pytest.mark.parametrize("attention", ["formula", "tiled", "fast"])
def test_every_attention_over_a_float16_cache(attention: AttentionName) -> None:
    model = MicroModel.random(spec(), FORMATS["float32"])
    ids = np.random.default_rng(2).integers(0, model.spec.vocab_size, 128)
    native, reference = NativeExecutor(threads=2), TorchExecutor(attention=attention)
    for executor in (native, reference):
        model.load(executor)
    got = run_whole(native, model, ids, dtype="float16")
    want = run_whole(reference, model, ids, (64, 63, 1), dtype="float16")
    # A value at a rounding border of float16 may fall to either side: one part in 2048.
    assert relative(got, want) <= 1e-4


def test_native_float32_is_as_near_to_float64_as_torch_float32() -> None:
    """Within twice the error that plain float32 torch itself has."""
    model = MicroModel.random(spec(num_layers=4, width=96, ffn_width=160), FORMATS["float32"])
    ids = np.random.default_rng(3).integers(0, model.spec.vocab_size, 120)
    exact = model.logits(ids)
    native, reference = NativeExecutor(threads=1), TorchExecutor(attention="formula")
    for executor in (native, reference):
        model.load(executor)
    ours = relative(run_whole(native, model, ids), exact)
    theirs = relative(run_whole(reference, model, ids), exact)
    assert ours <= 2 * theirs, (ours, theirs)
