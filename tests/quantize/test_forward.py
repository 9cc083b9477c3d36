"""The run in numpy against the executor's logits.

Owns: that calibration sees the inputs that the model computes. May not know: rounding.
Read next: `test_quantize.py`.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand.evaluate.perplexity import load_for_scoring, perplexity
from firsthand.generation.load_options import LoadOptions
from firsthand.models import families
from firsthand.quantize.forward import NumpyOps, Weights
from firsthand.quantize.source import open_source_model
from firsthand.weights.open import open_checkpoint

pytestmark = pytest.mark.native


class Plain:
    """A listener that rounds nothing."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def normed(self, x: Any, gain: str) -> Any:
        return x * self.weights.vectors[gain]

    def linear(self, x: Any, weight: str) -> Any:
        return x @ self.weights.matrix(weight).T


class WithHead(NumpyOps):
    """Goes on to the logits."""

    weights: Weights

    def head(self, x: Any, weight: str, cap: float | None = None) -> Any:
        logits = x @ self.weights.matrix(weight).T
        return logits if cap is None else cap * np.tanh(logits / cap)


def compare(folder: Path) -> None:
    text = "".join(chr(32 + i * 7 % 90) for i in range(64))
    options = LoadOptions(quantization="none", kv_dtype="float32", threads=1)
    theirs = perplexity(load_for_scoring(folder, options), text, window=64).nlls
    with closing(open_checkpoint(folder)) as checkpoint:
        source = open_source_model(checkpoint)
        ids = np.array([list(text.encode())])
        program = families.program(source.spec)
        ops = WithHead(ids, source.weights, program.ropes, Plain(source.weights))
        ops.weights = source.weights
        logits = program.forward(ops).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ours = -logprobs[np.arange(63), ids[0, 1:]]
    assert np.allclose(ours, theirs, atol=2e-4)


def test_it_computes_what_the_executor_computes(micro_folder: Path) -> None:
    compare(micro_folder)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["phi3", "mixtral", "qwen2 moe", "gemma3"])
def test_so_it_does_for_every_kind_of_layer(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.models.tiny_families import build

    build(name, tmp_path)
    compare(tmp_path)
