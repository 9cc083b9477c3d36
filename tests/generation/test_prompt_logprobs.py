"""Log-probabilities of a prompt's tokens: the same bits as where the model drew them itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import InvalidRequest
from firsthand.generation import LLM, Completion
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import Service, ServiceOptions

pytestmark = pytest.mark.native

TEXT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def llm(micro_folder: Path) -> Iterator[LLM]:
    """Two rows of logits at once, sixteen tokens in a step."""
    with LLM(micro_folder, threads=1, max_step_tokens=16, max_sequences=2) as opened:
        yield opened


def entries(completion: Completion) -> list[object]:
    assert completion.prompt_logprobs is not None
    assert completion.prompt_logprobs[0] is None
    return list(completion.prompt_logprobs)


def test_a_prompt_has_the_logprobs_that_its_tokens_had_when_they_were_drawn(llm: LLM) -> None:
    """LOGPROB-1: == on every bit, alternatives included."""
    drawn = llm.generate(TEXT, max_tokens=30, temperature=0.8, seed=3, logprobs=3, ignore_end=True)
    whole = [*llm.tokenize(TEXT), *drawn.token_ids]
    scored = llm.generate(whole, max_tokens=0, prompt_logprobs=3)
    assert (scored.text, scored.token_ids, scored.finish_reason) == ("", (), "length")
    assert len(entries(scored)) == len(whole)
    assert tuple(entries(scored)[-30:]) == drawn.logprobs


def test_neither_company_nor_the_cut_nor_the_cache_changes_a_bit(
    llm: LLM, micro_folder: Path
) -> None:
    prompts = [llm.tokenize(text) for text in (TEXT, TEXT[:21], TEXT * 3, "x")]
    together = llm.generate(prompts, max_tokens=4, temperature=0, prompt_logprobs=2)
    again = [llm.generate(one, max_tokens=4, temperature=0, prompt_logprobs=2) for one in prompts]
    with LLM(micro_folder, threads=2, max_step_tokens=256, max_sequences=16) as other:
        cut_once = other.generate(prompts, max_tokens=0, prompt_logprobs=2)
    for one, alone, whole in zip(together, again, cut_once, strict=True):
        assert entries(one) == entries(alone) == entries(whole)
        assert one.text == alone.text
        assert alone.report.num_cached_tokens == 0, "its rows have to be computed"


def test_a_stream_tells_of_the_prompt_no_later_than_of_the_first_token(llm: LLM) -> None:
    seen: list[object] = []
    for chunk in llm.stream(TEXT, max_tokens=3, seed=1, prompt_logprobs=0):
        assert not (chunk.token_ids and len(seen) < len(TEXT) - len(chunk.prompt_logprobs or ()))
        seen += chunk.prompt_logprobs or ()
    assert chunk.completion is not None
    assert seen == entries(chunk.completion)


def test_of_several_answers_the_first_has_the_prompts(llm: LLM) -> None:
    three = llm.generate(TEXT, n=3, max_tokens=2, seed=1, prompt_logprobs=1)
    alone = llm.generate(TEXT, max_tokens=2, seed=1, prompt_logprobs=1)
    assert [one.prompt_logprobs for one in three] == [alone.prompt_logprobs, None, None]


def test_the_same_through_the_engines_process(llm: LLM, micro_folder: Path) -> None:
    expected = llm.generate(TEXT, max_tokens=5, seed=2, prompt_logprobs=2)

    async def main() -> Completion:
        options = ServiceOptions(micro_folder, LoadOptions(threads=1, max_step_tokens=16))
        async with await Service.start(options) as service:
            await service.wait_ready()
            prompt = await service.tokenize(TEXT)
            stream = service.submit(prompt, {"max_tokens": 5, "seed": 2, "prompt_logprobs": 2})
            return (await stream.completions())[0]

    found = asyncio.run(main())
    assert (found.text, found.prompt_logprobs) == (expected.text, expected.prompt_logprobs)


def test_limits_are_told_by_name(llm: LLM) -> None:
    for field, options in (
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("max_tokens", {"max_tokens": 0}),
        ("n", {"max_tokens": 0, "prompt_logprobs": 0, "n": 2}),
    ):
        with pytest.raises(InvalidRequest) as refused:
            llm.generate(TEXT, **options)  # type: ignore[call-overload]
        assert refused.value.field == field


@pytest.mark.torch
@pytest.mark.oracle
@pytest.mark.parametrize("executor", ["native", "torch"])
def test_transformers_gives_the_same_numbers(micro_folder: Path, executor: str) -> None:
    import torch
    import transformers

    options = {"quantization": "none", "kv_dtype": "float32", "executor": executor}
    with LLM(micro_folder, **options) as llm:  # type: ignore[arg-type]
        ids = llm.tokenize(TEXT)
        scored = llm.generate(ids, max_tokens=0, prompt_logprobs=0)
    model = transformers.AutoModelForCausalLM.from_pretrained(micro_folder).eval()
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    expected = logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
    assert scored.prompt_logprobs is not None
    found = [entry.logprob for entry in scored.prompt_logprobs if entry is not None]
    np.testing.assert_allclose(found, expected, atol=1e-4)
