"""Other layers than Llama's made smaller: joined projections, experts, biases, heads.

Owns: that transformers gives our scores for what we wrote of each, and that it is still the model.
May not know: how codes are chosen. Read next: `test_quantize.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")
import torch
import transformers

from firsthand.evaluate.perplexity import load_for_scoring, perplexity
from firsthand.generation.load_options import LoadOptions
from tests.models.tiny_families import build
from tests.quantize.test_quantize import made

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:You passed .quantization_config.:UserWarning"),
]
AS_FLOATS = LoadOptions(quantization="none", kv_dtype="float32", threads=1)
MIXTURES = ("mixtral", "qwen2 moe", "qwen3 moe")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("phi3", {"kind": "int8"}),
    ("phi3", {"kind": "int4", "group": 0, "method": "scaled"}),
    ("mixtral", {"kind": "int8"}),
    ("qwen2 moe", {"kind": "int8", "head": True}),
    ("qwen3 moe", {"kind": "int4", "group": 0, "method": "searched"}),
    ("qwen2", {"kind": "int8", "head": True}),
    ("llama", {"kind": "w8a8", "head": True, "method": "nearest"}),
    ("gemma3", {"kind": "int8"}),
]


def scores(folder: Path, text: str) -> Any:
    return np.array(perplexity(load_for_scoring(folder, AS_FLOATS), text, window=64).nlls)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_transformers_gives_our_scores(
    tmp_path: Path, passages: str, name: str, options: dict[str, Any]
) -> None:
    source, folder, text = tmp_path / "source", tmp_path / "small", passages[:64]
    source.mkdir()
    build(name, source)
    report = made(source, folder, passages, **options)
    assert report.published
    ours = scores(folder, text)
    # Compressed, its embeddings have no values that a head could be tied to.
    how = {}
    if options.get("head"):
        how["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how)
    ids = torch.tensor([list(text.encode())])
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    theirs = -logprobs[torch.arange(len(ids[0]) - 1), ids[0, 1:]].numpy()
    # w8a8: they round activations to 8 bits as well. Experts and heads become float16 there, and of
    # two experts that are close the other one may be taken.
    bound = {"w8a8": 0.3}.get(options["kind"], 2e-2 if how or name in MIXTURES else 2e-3)
    apart = np.abs(ours - theirs)
    assert (np.quantile(apart, 0.9) if name in MIXTURES else apart.max()) < bound
    if options["kind"] == "int8":  # whatever was scaled was scaled back
        assert np.sqrt(np.mean((ours - scores(source, text)) ** 2)) < 0.1
