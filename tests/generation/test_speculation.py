"""Guessed tokens change when a token comes, never which: == with plain decoding, on real kernels.

The micro model knows 257 tokens and repeats itself when it is greedy, so lookups find much; a draft
of the same weights is nearly always right, one of other weights nearly never. Guesses that do not
pay are computed all the same here (`adaptive` is off): what is tested is that they cannot tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.engine.facts import StepFacts
from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.generation import LLM, Completion
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import load_model
from firsthand.generation.service import Service, ServiceOptions
from firsthand.generation.variants import varied
from firsthand.request import RepetitionGuard
from tests.generation.test_llm import bits

pytestmark = pytest.mark.native

CONTEXT = 160
LOOKUP: dict[str, Any] = {"method": "ngram", "prompt_lookup_min": 1, "adaptive": False}
PERSON = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "xx"]}}}
OPTIONS: list[dict[str, Any]] = [
    {"seed": 1, "temperature": 0, "max_tokens": 60, "logprobs": 3},
    {"seed": 2, "temperature": 0, "max_tokens": 60, "repetition_penalty": 1.05, "logprobs": 0},
    {"seed": 3, "max_tokens": 40, "temperature": 0.3, "logprobs": 2},
    {"seed": 4, "max_tokens": 40, "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.4},
    {"seed": 5, "max_tokens": 40, "temperature": 0.2, "top_k": 5, "logit_bias": {65: 4.0}},
    {"seed": 1, "temperature": 0, "max_tokens": 60, "stop": ["aa", "e"]},
    {
        "seed": 1,
        "temperature": 0,
        "max_tokens": 90,
        "min_tokens": 20,
        "stop_token_ids": [97, 98, 99],
    },
    {"seed": 1, "temperature": 0, "max_tokens": 120, "repetition_guard": RepetitionGuard(8, 3)},
    {"seed": 6, "max_tokens": 50, "grammar": {"regex": "(abc|abd)*x"}},
    {"seed": 7, "max_tokens": 60, "temperature": 0.8, "grammar": {"json": PERSON}},
    {"seed": 1, "temperature": 0, "max_tokens": 300, "ignore_end": True},
]
PROMPTS = ["abc abd abc abd abc", "hello hello hello", "q", "one two three one two"]


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro_model(tmp_path_factory.mktemp("other"), seed=9)


@pytest.fixture(scope="module")
def plain(micro_folder: Path) -> Iterator[LLM]:
    with LLM(micro_folder, max_context=CONTEXT, threads=2) as llm:
        yield llm


@pytest.fixture(scope="module", params=["ngram", "same", "other"])
def guessing(
    request: pytest.FixtureRequest, micro_folder: Path, other_folder: Path
) -> Iterator[LLM]:
    config: dict[str, Any] = LOOKUP
    if request.param != "ngram":
        draft = micro_folder if request.param == "same" else other_folder
        config = {"model": str(draft), "num_speculative_tokens": 5, "adaptive": False}
    with LLM(micro_folder, max_context=CONTEXT, threads=2, speculative_config=config) as llm:
        yield llm


@pytest.mark.parametrize("given", OPTIONS)
def test_alone(plain: LLM, guessing: LLM, given: dict[str, Any]) -> None:
    for prompt in PROMPTS[:2]:
        wanted = plain.generate(prompt, **given)
        found = guessing.generate(prompt, **given)
        assert bits(found) == bits(wanted)
        assert found.report.num_accepted <= found.report.num_guesses
        assert wanted.report.num_guesses == 0


def test_a_draft_of_the_same_weights_is_right_also_where_tokens_are_sampled(
    plain: LLM, micro_folder: Path
) -> None:
    """The random number of a position is the same for both."""
    config: dict[str, Any] = {
        "model": str(micro_folder),
        "num_speculative_tokens": 4,
        "adaptive": False,
    }
    with LLM(micro_folder, max_context=CONTEXT, threads=1, speculative_config=config) as llm:
        for options in ({"temperature": 0}, {"seed": 5, "temperature": 1.0, "top_p": 0.95}):
            found = llm.generate("abc", max_tokens=80, ignore_end=True, **options).report
            assert found.num_accepted > 0.9 * found.num_guesses > 50
            assert found.num_steps < 80 / 3
            assert found.num_tokens == 80


def test_in_any_company(plain: LLM, guessing: LLM) -> None:
    prompts = [f"{PROMPTS[n % 4]} {n}" for n in range(9)]
    for options in ({"seed": 1, "temperature": 0, "logprobs": 1}, {"seed": 1, "temperature": 0.4}):
        wanted = [plain.generate(one, max_tokens=30, **options) for one in prompts]
        together = guessing.generate(prompts, max_tokens=30, **options)
        assert list(map(bits, together)) == list(map(bits, wanted))
        assert max(one.report.peak_batch for one in together) > 1
    several = guessing.generate("abc abc", n=4, seed=8, max_tokens=30, temperature=0.3)
    alone = [
        plain.generate("abc abc", seed=8 + i, max_tokens=30, temperature=0.3) for i in range(4)
    ]
    assert [one.token_ids for one in several] == [one.token_ids for one in alone]


@pytest.mark.parametrize("store", ["paged", "contiguous"])
def test_with_little_memory_small_steps_and_found_prefixes(
    micro_folder: Path, plain: LLM, store: Any
) -> None:
    load = LoadOptions(
        max_context=CONTEXT,
        threads=2,
        kv_store=store,
        max_step_tokens=8,
        max_sequences=4,
        prefix_cache=store == "paged",
        speculative_config=LOOKUP,
    )
    tight = varied(load_model(micro_folder, load), num_blocks=14, prefix_cache=store == "paged")
    options: dict[str, Any] = {"max_tokens": 110, "seed": 0, "temperature": 0, "ignore_end": True}
    head = "a common beginning of some length, "
    prompts = [head + f"abc abd abc {n}" for n in range(6)]
    wanted = [plain.generate(one, **options) for one in prompts]
    preempted, guessed = [], []
    with LLM(tight) as llm:
        with llm.listening(lambda facts: preempted.append(facts.planned.num_preempted)):
            found = llm.generate(prompts, **options)
        again = llm.generate(prompts[0], **options)
        guessed = [one.report.num_accepted for one in found]
    assert list(map(bits, found)) == list(map(bits, wanted))
    assert bits(again) == bits(wanted[0])
    assert sum(guessed) > 0
    if store == "paged":
        assert sum(preempted) > 0 and again.report.num_cached_tokens > 0


def test_it_switches_itself_off_and_on_without_a_change_of_bits(
    plain: LLM, micro_folder: Path, other_folder: Path
) -> None:
    """Whatever the clock of this machine says: decisions move, tokens do not."""
    configs: list[dict[str, Any]] = [{"prompt_lookup_min": 1}, {"model": str(other_folder)}]
    for config in configs:
        with LLM(micro_folder, max_context=CONTEXT, threads=1, speculative_config=config) as llm:
            for prompt in PROMPTS:
                wanted = plain.generate(prompt, max_tokens=60, seed=0, temperature=0, logprobs=1)
                found = llm.generate(prompt, max_tokens=60, seed=0, temperature=0, logprobs=1)
                assert bits(found) == bits(wanted)


def test_facts_tell_of_guesses(micro_folder: Path) -> None:
    steps: list[StepFacts] = []
    opened = LLM(micro_folder, max_context=CONTEXT, threads=1, speculative_config=LOOKUP)
    with opened as llm, llm.listening(steps.append):
        done = llm.generate("abc abc abc", max_tokens=60, seed=0, temperature=0, ignore_end=True)
    told = [one for facts in steps for one in facts.guesses]
    assert sum(one.num_guesses for one in told) == done.report.num_guesses > 0
    assert sum(one.num_accepted for one in told) == done.report.num_accepted > 0
    assert sum(facts.num_drawn for facts in steps) == 60 > done.report.num_steps
    assert done.report.to_dict()["timings"]["draft_n_accepted"] == done.report.num_accepted


def test_in_a_process_of_its_own(micro_folder: Path, plain: LLM) -> None:
    options = ServiceOptions(
        str(micro_folder),
        load=LoadOptions(max_context=CONTEXT, threads=1, speculative_config=LOOKUP),
    )

    async def run() -> tuple[Completion, int, int]:
        async with await Service.start(options) as service:
            await service.wait_ready()
            prompt = await service.tokenize("abc abc abc")
            stream = service.submit(prompt, {"max_tokens": 60, "seed": 0, "temperature": 0})
            (completion,) = await stream.completions()
            return completion, stream.usage.draft_tokens, stream.usage.accepted_tokens

    found, draft, accepted = asyncio.run(run())
    wanted = plain.generate("abc abc abc", max_tokens=60, seed=0, temperature=0)
    assert (found.token_ids, found.text) == (wanted.token_ids, wanted.text)
    assert (draft, accepted) == (found.report.num_guesses, found.report.num_accepted)
    assert 0 < accepted <= draft


def test_a_draft_with_another_vocabulary_is_refused(micro_folder: Path, tmp_path: Path) -> None:
    other = write_micro_model(tmp_path, seed=3)
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    (other / "tokenizer.json").write_text(text.replace('"a":', '"\\u0000a":', 1))
    with pytest.raises(InvalidRequest, match=r"speculative_config\.model.*another vocabulary"):
        load_model(micro_folder, LoadOptions(speculative_config={"model": str(other)}))


def test_a_draft_is_part_of_the_memory_that_is_planned(micro_folder: Path) -> None:
    config: dict[str, Any] = {"model": str(micro_folder)}
    alone = load_model(micro_folder, LoadOptions(max_context=64, threads=1)).budget
    both = load_model(
        micro_folder, LoadOptions(max_context=64, threads=1, speculative_config=config)
    )
    draft_bytes = both.budget.fixed.draft_bytes
    assert draft_bytes > alone.fixed.weights_bytes
    assert ("draft", draft_bytes) in [row[:2] for row in both.budget.rows()]
    assert both.draft is not None and both.draft.limits.context_length == 64
    limit = alone.num_bytes + draft_bytes // 2
    with pytest.raises(CapacityExceeded, match="the draft"):
        load_model(
            micro_folder,
            LoadOptions(
                max_context=64, threads=1, memory_limit=limit, max_sequences=16,
                speculative_config=config,
            ),
        )  # fmt: skip


@pytest.mark.torch
@pytest.mark.slow
def test_on_the_torch_executor(micro_folder: Path) -> None:
    """Not a promise of equal bits; of a model this size the likeliest token is far from tied."""
    pytest.importorskip("torch")
    answers = []
    draft: dict[str, Any] = {"model": str(micro_folder), "adaptive": False}
    for config in (None, LOOKUP, draft):
        opened = LLM(micro_folder, executor="torch", max_context=CONTEXT, speculative_config=config)
        with opened as llm:
            answers.append(llm.generate(PROMPTS[:2], max_tokens=30, temperature=0))
    plain, *guessed = answers
    for found in guessed:
        assert [one.token_ids for one in found] == [one.token_ids for one in plain]
        assert sum(one.report.num_accepted for one in found) > 0
