"""From a loaded model to an engine: warm, clean, and refused when its first step fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from firsthand.engine.facts import StepFacts
from firsthand.errors import EngineError
from firsthand.generation.assembly import WARM_TOKENS, assemble, max_requests, warm_up
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.request import Request, SamplingParams, StopRules

pytestmark = pytest.mark.native


@pytest.fixture
def loaded(micro_folder: Path) -> LoadedModel:
    return load_model(micro_folder, LoadOptions(max_context=64, threads=1))


def test_a_warm_engine_holds_nothing_and_answers(loaded: LoadedModel) -> None:
    steps: list[StepFacts] = []
    assembly = assemble(loaded, time.perf_counter, steps.append)
    longest = warm_up(assembly, loaded)
    assert [step.slice_tokens for step in steps] == [(WARM_TOKENS,), (1,)] * 2
    assert longest.ms > steps[2].run_ms
    assert longest.cpu_ms > 0
    assert steps[-1].num_used_blocks == 0
    assert not assembly.engine.has_work
    assembly.engine.add(Request("a", (1, 2), SamplingParams(), StopRules(2), seed=1))
    assert len([*assembly.engine.step(), *assembly.engine.step()]) == 2
    assert max_requests(loaded) == 1024 + loaded.limits.max_sequences


def test_the_shortest_context_is_warmed_too(micro_folder: Path) -> None:
    loaded = load_model(micro_folder, LoadOptions(max_context=16, threads=1))
    assembly = assemble(loaded, time.perf_counter, lambda facts: None)
    assert warm_up(assembly, loaded).ms > 0


def test_a_model_whose_first_step_fails_is_not_ready(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(loaded.executor, "run", fail)
    assembly = assemble(loaded, time.perf_counter, lambda facts: None)
    with pytest.raises(EngineError, match="on purpose"):
        warm_up(assembly, loaded)
