"""Vectors of texts: equal to transformers' pooled hidden states, and to themselves in company."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import InvalidRequest
from firsthand.generation import LLM

pytestmark = pytest.mark.native

TEXTS = ["The quick brown fox", "jumps", "over the lazy dog, again and again and again", "x"]


@pytest.fixture(scope="module")
def llm(micro_folder: Path) -> Iterator[LLM]:
    with LLM(micro_folder, threads=1, max_step_tokens=16, max_sequences=2) as opened:
        yield opened


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_neither_company_nor_the_cut_nor_the_cache_changes_a_bit(
    llm: LLM, micro_folder: Path, pooling: str
) -> None:
    """Batched, alone, asked again (then the cache knows it), in one step, on two threads: ==."""
    together = llm.embed(TEXTS, pooling=pooling)
    assert [vector.shape for vector in together] == [(64,)] * 4
    again = [llm.embed([text], pooling=pooling)[0] for text in TEXTS]
    with LLM(micro_folder, threads=2, max_step_tokens=256, max_sequences=16) as other:
        whole = other.embed([llm.tokenize(text) for text in TEXTS], pooling=pooling)
    for one, alone, cut_once in zip(together, again, whole, strict=True):
        assert one.tobytes() == alone.tobytes() == cut_once.tobytes()
        assert np.isclose(np.linalg.norm(one), 1.0, atol=1e-6)


def test_length_and_number_of_dimensions(llm: LLM) -> None:
    (raw,) = llm.embed(["abc"], normalize=False)
    (whole,) = llm.embed(["abc"])
    (cut,) = llm.embed(["abc"], dimensions=8)
    np.testing.assert_allclose(whole, raw / np.linalg.norm(raw), rtol=1e-6)
    np.testing.assert_allclose(cut, raw[:8] / np.linalg.norm(raw[:8]), rtol=1e-6)


@pytest.mark.torch
@pytest.mark.oracle
@pytest.mark.parametrize("executor", ["native", "torch"])
def test_transformers_gives_the_same_vectors(micro_folder: Path, executor: str) -> None:
    import torch
    import transformers

    options = {"quantization": "none", "kv_dtype": "float32", "executor": executor}
    with LLM(micro_folder, **options) as llm:  # type: ignore[arg-type]
        ids = [llm.tokenize(text) for text in TEXTS]
        found = {name: llm.embed(ids, pooling=name, normalize=False) for name in ("last", "mean")}
    model = transformers.AutoModelForCausalLM.from_pretrained(micro_folder).eval()
    for row, one in enumerate(ids):
        with torch.inference_mode():
            states = model(torch.tensor([one]), output_hidden_states=True).hidden_states[-1][0]
        np.testing.assert_allclose(found["last"][row], states[-1].numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["mean"][row], states.mean(0).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "texts", "options"),
    [
        ("pooling", ["x"], {"pooling": "max"}),
        ("dimensions", ["x"], {"dimensions": 65}),
        ("dimensions", ["x"], {"dimensions": 0}),
        ("normalize", ["x"], {"normalize": 1}),
        ("temprature", ["x"], {"temprature": 1}),
        ("prompt", [""], {}),
        ("prompt", ["x" * 513], {}),
        ("texts", "x", {}),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    llm: LLM, field: str, texts: list[str], options: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        llm.embed(texts, **options)  # type: ignore[arg-type]
    assert refused.value.field == field
