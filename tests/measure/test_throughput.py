"""Many at once on the generated model: fields, sums, and refusals by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from firsthand.cli.micro_model import write_micro_model
from firsthand.engine.facts import StepFacts
from firsthand.errors import ContextLengthExceeded, FirsthandError, InvalidRequest
from firsthand.generation.llm import LLM
from firsthand.measure.throughput import (
    Run,
    distinct_prompts,
    measure_throughput,
    outside_kernels_share,
    run_once,
)

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = str(write_micro_model(tmp_path_factory.mktemp("micro")))
    with LLM(model, threads=1, max_sequences=5) as loaded:
        yield loaded


def test_throughput_adds_up(llm: LLM) -> None:
    found = measure_throughput(llm, 5, prompt_tokens=8, output_tokens=6, repeats=2)
    for spread in (found.output_tokens_per_second, found.step_ms):
        assert 0 < spread.min <= spread.median <= spread.max
    assert 0 < found.outside_kernels_share < 1
    assert 5 <= found.kv_blocks.peak <= found.kv_blocks.total
    assert (found.num_preemptions, found.threads) == (0, 1)
    assert found.to_dict()["kv_blocks"]["total"] == llm.loaded.budget.num_blocks


def test_a_run_has_every_token_and_all_sequences_at_once(llm: LLM) -> None:
    prompts = distinct_prompts(5, 8, llm.loaded.limits.vocab_size)
    assert len({prompt[0] for prompt in prompts}) == 5
    run = run_once(llm, prompts, 300)
    assert sum(step.num_drawn for step in run.steps) == 5 * 300
    # All five, unless another program held this one up while it handed them over.
    assert 2 <= max(step.num_sequences for step in run.steps) <= 5
    before = len(run.steps)
    llm.generate("one more", max_tokens=2)
    assert len(run.steps) == before  # it listens no more


def test_what_is_outside_the_kernels_has_the_time_between_two_steps() -> None:
    """Two steps of 8 ms in kernels; 10 ms from one's beginning to the other's, 9 of the last."""
    facts = StepFacts(1.0, ("a",), (1,), 1, 0, 0, 1, 1, 0.5, 8.4, 6.0, 2.0, 0.1)
    share = outside_kernels_share([Run(0.02, [facts, replace(facts, started_s=1.01)])])
    assert share == pytest.approx(1 - 16 / 19)


@pytest.mark.parametrize(
    ("field", "error", "sizes"),
    [
        ("concurrency", InvalidRequest, (0, 8, 4, 1)),
        ("concurrency", InvalidRequest, (1025, 8, 4, 1)),
        ("prompt_tokens", InvalidRequest, (2, 0, 4, 1)),
        ("output_tokens", InvalidRequest, (2, 8, 1, 1)),
        ("repeats", InvalidRequest, (2, 8, 4, 0)),
        ("prompt_tokens", ContextLengthExceeded, (2, 8_000, 4_000, 1)),
    ],
)
def test_bad_sizes_are_refused_by_name(
    llm: LLM, field: str, error: type[FirsthandError], sizes: tuple[int, int, int, int]
) -> None:
    with pytest.raises(error, match=field):
        measure_throughput(llm, *sizes)
