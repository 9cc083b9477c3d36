"""The window of texts that are only scored or pooled, with the real timers of both loops."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from firsthand.engine.facts import BatchFacts, StepFacts
from firsthand.generation import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.service import Service, ServiceOptions

pytestmark = pytest.mark.native

WAIT_S = 0.1
OPTIONS = {"threads": 1, "max_batch_size": 4, "max_batch_wait_s": WAIT_S, "min_batch_size": 2}


def test_a_lone_text_is_held_by_the_library_and_let_go(micro_folder: Path) -> None:
    """Nobody else ever comes."""
    batches: list[BatchFacts] = []
    with (
        LLM(micro_folder, **OPTIONS) as llm,  # type: ignore[arg-type]
        llm.listening(lambda facts: batches.extend(facts.batches)),
    ):
        started_s = time.perf_counter()
        (alone,) = llm.embed(["a text"])
        assert time.perf_counter() - started_s >= WAIT_S
        three = llm.embed(["a text", "another", "and one more"])
    assert three[0].tobytes() == alone.tobytes()
    assert batches[0].size == 1
    assert batches[0].wait_s >= WAIT_S
    assert sum(batch.size for batch in batches) == 4


def test_the_engines_process_has_a_timer_too(micro_folder: Path) -> None:
    """Also while nothing arrives; what generates passes by."""

    async def main() -> list[StepFacts]:
        options = ServiceOptions(micro_folder, LoadOptions(**OPTIONS))  # type: ignore[arg-type]
        seen: list[StepFacts] = []
        async with await Service.start(options) as service:
            await service.wait_ready()
            service.listen(seen.append)
            prompt = await service.tokenize("a text")
            held = service.submit(prompt, {"max_tokens": 0, "prompt_logprobs": 0})
            quick = service.submit(prompt, {"max_tokens": 1})
            await quick.completions()
            assert not [facts for facts in seen if facts.batches], "it is held"
            (scored,) = await asyncio.wait_for(held.completions(), 20)
            assert scored.prompt_logprobs is not None
        return seen

    (batch,) = [batch for facts in asyncio.run(main()) for batch in facts.batches]
    assert batch.size == 1
    assert batch.wait_s >= WAIT_S
