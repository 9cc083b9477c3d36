"""The quality gate: what a format may cost in perplexity, on the real model.

Owns: the bounds. May not know: how any format is computed. Read next: `docs/evaluate.md`.

On the native executor each of these numbers is fixed by the text and the file, so a bound that
holds holds on every machine. A change of a kernel that breaks one has cost quality.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from firsthand.evaluate.perplexity import load_for_scoring, perplexity
from firsthand.generation.load_options import LoadOptions

pytestmark = [pytest.mark.native, pytest.mark.model, pytest.mark.slow]


def measured(path: Path, text: str, max_windows: int | None = None, **options: Any) -> float:
    model = load_for_scoring(path, LoadOptions(**options))
    return perplexity(model, text, max_windows=max_windows).perplexity


@pytest.fixture(scope="module")
def exact(smollm2_path: Path, passages: str) -> float:
    """Float32 throughout, of the values that the file's blocks stand for."""
    return measured(smollm2_path, passages, quantization="none", kv_dtype="float32")


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"quantization": "auto"}, 1e-3),  # measured: −0.0005 %
        ({"quantization": "auto", "kv_dtype": "float32"}, 1e-3),
        ({"quantization": "none"}, 1e-4),  # keys and values in float16: +0.0001 %
        ({"quantization": "int8"}, 5e-3),  # a second rounding of the weights: +0.42 %
    ],
    ids=["the file's blocks", "the same, float32 KV", "float16 KV", "int8"],
)
def test_n_5_a_format_keeps_the_perplexity(
    smollm2_path: Path, passages: str, exact: float, options: dict[str, Any], bound: float
) -> None:
    assert measured(smollm2_path, passages, **options) == pytest.approx(exact, rel=bound)


@pytest.mark.torch
def test_int8_costs_what_rounding_its_weights_costs(smollm2_path: Path, passages: str) -> None:
    """The torch executor has the same int8 weights as floats: what is left is the activations'."""
    pytest.importorskip("torch")
    options: dict[str, Any] = {"max_windows": 4, "quantization": "int8", "kv_dtype": "float32"}
    of = partial(measured, smollm2_path, passages, **options)
    assert of() == pytest.approx(of(executor="torch"), rel=1e-3)  # the whole text: −0.0005 %
