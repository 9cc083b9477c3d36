"""The cache of prefixes, seen from outside: it changes the work, and no bit of an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from firsthand.engine.facts import StepFacts
from firsthand.generation import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model

pytestmark = pytest.mark.native

PROMPT = list(range(3, 43))  # two full blocks of 16, and half a block


@pytest.fixture(scope="module")
def loaded(micro_folder: Path) -> LoadedModel:
    return load_model(micro_folder, LoadOptions(max_context=64, threads=1))


def asked(
    llm: LLM, prompt: list[int] = PROMPT, *, salt: str = "", n: int = 1
) -> tuple[list[object], int, int]:
    """The answers with their logprobs, the tokens found computed, and the tokens computed."""
    steps: list[StepFacts] = []
    with llm.listening(steps.append):
        given = llm.generate(prompt, max_tokens=9, seed=5, logprobs=3, cache_salt=salt, n=n)
    answers = given if isinstance(given, list) else [given]
    found = sum(step.planned.num_prefix_hit_tokens for step in steps)
    computed = sum(step.num_tokens for step in steps)
    return [(one.token_ids, one.logprobs) for one in answers], found, computed


def test_kv_4_kv_5_a_hit_gives_the_same_bits_with_less_work(loaded: LoadedModel) -> None:
    with LLM(loaded) as llm:
        cold, found, computed = asked(llm)
        assert (found, computed) == (0, 48)
        assert asked(llm) == (cold, 32, 16)
        assert asked(llm, salt="another") == (cold, 0, 48)
        changed = [*PROMPT[:20], 2, *PROMPT[21:]]
        partly = asked(llm, changed)
        assert partly[1] == 16
    with LLM(loaded) as llm:
        assert asked(llm, changed)[0] == partly[0]


def test_n_answers_compute_their_prompt_once(loaded: LoadedModel) -> None:
    with LLM(loaded) as llm:
        answers, found, computed = asked(llm, n=3)
        assert (found, computed) == (2 * 39, 40 + 2 + 3 * 8)
    with LLM(loaded) as llm:
        assert asked(llm)[0] == answers[:1]
