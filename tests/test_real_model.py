"""The real model, proven by someone else: transformers reads the same file in its own way.

Its loader dequantises the GGUF blocks, undoes the order of their rows and builds its own Llama in
float32. Greedy text is compared by asking it, after each of our tokens, for the next one: equal
at every place means equal text. A difference counts only where its own two best logits are near.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firsthand import LLM

pytestmark = [pytest.mark.native, pytest.mark.model]

NUM_TOKENS = 256
NEAR_TIE = 1e-3

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def quicksort(items):\n",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\n",
    "春天的早晨，",
    "El perro corre por",
    "Q: What is 17 * 3?\nA:",
    "Ingredients:\n- 2 eggs\n-",
    "The mitochondria is",
    "import numpy as np\n\n",
    "She opened the door and",
    "In 1969, humans",
    "<html>\n<head>\n",
    "SELECT name FROM",
    "Photosynthesis converts",
    "🙂🙂🙂",
    "To be, or not to be,",
    "The stock market fell because",
    "1 1 2 3 5 8 13",
]


@pytest.fixture(scope="module")
def transformers_model(smollm2_path: Path) -> Any:
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    torch = pytest.importorskip("torch", reason="compares with transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def exact_llm(smollm2_path: Path) -> Iterator[LLM]:
    """Float32 throughout: the decoded blocks, and a float32 cache."""
    options: dict[str, Any] = {"quantization": "none", "kv_dtype": "float32", "max_context": 512}
    with LLM(smollm2_path, max_sequences=len(PROMPTS), **options) as model:
        yield model


@pytest.mark.oracle
@pytest.mark.torch
@pytest.mark.slow
def test_greedy_text_equals_transformers(exact_llm: LLM, transformers_model: Any) -> None:
    import torch

    completions = exact_llm.generate(PROMPTS, max_tokens=NUM_TOKENS, temperature=0, ignore_end=True)
    ties = []
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        prompt_ids = exact_llm.tokenize(prompt)
        assert len(completion.token_ids) == NUM_TOKENS
        ids = torch.tensor([prompt_ids + list(completion.token_ids)])
        with torch.inference_mode():
            logits = transformers_model(ids).logits[0, len(prompt_ids) - 1 : -1].numpy()
        ours = logits[np.arange(NUM_TOKENS), completion.token_ids]
        gap = logits.max(axis=1) - ours
        ties += [(prompt, place, float(gap[place])) for place in np.flatnonzero(gap > 0)]
    assert all(gap <= NEAR_TIE for _, _, gap in ties), ties
    assert len(ties) <= 5, ties


@pytest.mark.oracle
@pytest.mark.torch
def test_logits_are_as_near_to_float64_as_those_of_transformers(
    exact_llm: LLM, transformers_model: Any
) -> None:
    """Within twice the error that float32 transformers itself has against its float64 run."""
    import torch

    prompt = exact_llm.tokenize("The quick brown fox jumps over the lazy dog. " * 4)
    got = exact_llm.generate(prompt, max_tokens=1, temperature=0, logprobs=20).logprobs
    assert got is not None
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        single = torch.log_softmax(transformers_model(ids).logits[0, -1].double(), -1)
        double = torch.log_softmax(transformers_model.double()(ids).logits[0, -1], -1)
    torch.nn.Module.float(transformers_model)  # its own `float` refuses: it was a GGUF file
    top = [token_id for token_id, _, _ in got[0].top]
    ours = np.abs(np.array([value for _, _, value in got[0].top]) - double[top].numpy()).max()
    theirs = np.abs((single - double)[top].numpy()).max()
    assert ours <= 2 * theirs + 1e-6, (ours, theirs)


def test_batched_equals_alone_on_the_real_model(smollm2_path: Path) -> None:
    """The first promise, with the file's own 4-bit blocks: tokens and logprob bits."""
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.9, "seed": 5, "logprobs": 2}
    prompts = PROMPTS[:6]
    with LLM(smollm2_path, max_context=256, max_sequences=6) as many:
        together = many.generate(prompts, **options)
    with LLM(smollm2_path, max_context=256, max_step_tokens=3, max_sequences=1, threads=1) as one:
        alone = [one.generate(prompt, **options) for prompt in prompts]
    for got, want in zip(together, alone, strict=True):
        assert got.token_ids == want.token_ids
        assert got.logprobs == want.logprobs
