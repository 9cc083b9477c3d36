"""The cache of prefixes, seen from outside: it changes the work, and no bit of an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    llm: LLM, prompt: list[int] = PROMPT, *, salt: str = "", n: int = 1, **more: str
) -> tuple[list[object], int, int]:
    """The answers with their logprobs, the tokens found computed, and the tokens computed."""
    steps: list[StepFacts] = []
    with llm.listening(steps.append):
        options: Any = {"max_tokens": 9, "seed": 5, "logprobs": 3, "cache_salt": salt, **more}
        given = llm.generate(prompt, n=n, **options)
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


def test_kv_4_an_adapter_finds_its_own_prefixes_only(micro_folder: Path, tmp_path: Path) -> None:
    """Also where a salt or a tenant has an adapter's name."""
    pytest.importorskip("safetensors")
    from tests.weights.adapter_files import write_adapter

    lora = {name: str(write_adapter(tmp_path / name, seed=len(name))) for name in ("sql", "1:sql")}
    with LLM(micro_folder, lora=lora, max_context=64, threads=1) as llm:
        seen = []
        cases: tuple[dict[str, Any], ...] = (
            {},
            {"salt": "sql"},
            {"tenant": "sql"},
            {"adapter": "sql"},
            {"adapter": "1:sql"},
            {"adapter": "sql", "salt": "sql"},
            {"tenant": "3:sql"},
        )
        for given in cases:
            answer, found, _ = asked(llm, **given)
            assert found == 0, given
            assert asked(llm, **given)[:2] == (answer, 32)
            seen.append(answer)
    assert seen[0] == seen[1] == seen[2] == seen[6]
    assert seen[3] == seen[5]
    assert seen[0] != seen[3] != seen[4] != seen[0]
