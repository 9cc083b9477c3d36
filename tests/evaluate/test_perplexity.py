"""Perplexity: against the formula, against transformers, and to the last bit against itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand import LLM
from firsthand.compute.batch import FlatBatch
from firsthand.compute.native import _native
from firsthand.engine.sampler import Sampler
from firsthand.errors import EngineError, InvalidRequest
from firsthand.evaluate import perplexity as module
from firsthand.evaluate.perplexity import Perplexity, load_for_scoring, perplexity, score
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw

pytestmark = pytest.mark.native

TEXT = "Pack my box with five dozen liquor jugs. " * 8
WINDOW = 48
EXACT = LoadOptions(quantization="none", kv_dtype="float32")


@pytest.fixture(scope="module")
def exact(micro_folder: Path) -> LoadedModel:
    return load_for_scoring(micro_folder, EXACT)


def measured(model: LoadedModel, **options: Any) -> Perplexity:
    return perplexity(model, TEXT, window=WINDOW, **options)


class Fixed:
    """An executor whose logits are those of a table, by position."""

    name = "fixed"

    def __init__(self, table: NDArray[np.float32]) -> None:
        self._table = table
        self.steps: list[list[int]] = []

    def run(self, batch: FlatBatch, _: object) -> NDArray[np.float32]:
        self.steps.append(batch.positions.tolist())
        assert batch.slots().tolist() == batch.positions.tolist()
        return self._table[batch.positions[batch.logit_rows]]


def store(max_tokens: int = 8) -> ContiguousStore:
    return ContiguousStore(1, 1, 2, num_slots=max_tokens, max_tokens=max_tokens)


def fixed_score(
    table: Sequence[Sequence[float]], ids: Sequence[int], rows: int = 2
) -> tuple[list[float], list[list[int]]]:
    executor = Fixed(np.array(table, dtype=np.float32))
    return score(executor, store(), ids, rows), executor.steps  # type: ignore[arg-type]


def test_a_score_is_minus_the_log_of_the_softmax_of_the_row_before() -> None:
    table = [[0.0, math.log(3), 0.0], [0.0, 0.0, 0.0], [math.log(2), 0.0, 0.0]]
    scores, steps = fixed_score(table, [0, 1, 2, 0])
    assert scores == pytest.approx([math.log(5 / 3), math.log(3), math.log(2)], rel=1e-7)
    assert steps == [[0, 1], [2]]  # the last token is never read


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_finite_score_is_an_error(bad: float) -> None:
    with pytest.raises(EngineError):
        fixed_score([[0.0, bad]], [0, 1])


def test_the_log_probability_is_within_float64_of_the_formula() -> None:
    source = np.random.default_rng(3)
    for size in (1, 2, 15, 16, 17, 300, 49152):
        row = (12 * source.standard_normal(size)).astype(np.float32)
        wide = row.astype(np.longdouble)
        wanted = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        for token_id in {0, size // 2, size - 1}:
            got = _native.token_logprob(row, token_id)
            assert got == pytest.approx(float(wanted[token_id]), rel=1e-13, abs=1e-13)


def test_the_log_probability_is_the_one_that_the_sampler_reports() -> None:
    logits = (9 * np.random.default_rng(4).standard_normal((5, 1000))).astype(np.float32)
    draw = Draw(SamplingParams(logprobs=0), seed=1, position=2)
    reports = Sampler()(logits, [draw] * len(logits)).reports
    assert len(reports) == len(logits)
    for row, drawn in reports.items():
        assert drawn.logprob == np.float32(_native.token_logprob(logits[row], drawn.token_id))


@pytest.mark.parametrize("token_id", [-1, 3])
def test_a_token_outside_the_row_is_refused(token_id: int) -> None:
    with pytest.raises(ValueError, match=f"token {token_id} is outside"):
        _native.token_logprob(np.zeros(3, np.float32), token_id)


def test_the_summary_is_that_of_the_scores() -> None:
    found = Perplexity((1.0, 2.0, 3.0), num_windows=1, window=4, seconds=1.0)
    assert found.num_tokens == 3
    assert found.nll_per_token == 2.0
    assert found.perplexity == math.exp(2)
    assert found.standard_error == pytest.approx(math.exp(2) / math.sqrt(3))
    assert Perplexity((1.0,), 1, 4, 1.0).standard_error is None


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_threads_and_steps_change_no_bit(
    micro_folder: Path, quantization: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LoadOptions(quantization=quantization)
    want = measured(load_for_scoring(micro_folder, replace(options, threads=1))).nlls
    assert measured(load_for_scoring(micro_folder, replace(options, threads=3))).nlls == want
    for rows in (1, 7, 64):
        monkeypatch.setattr(module, "STEP_ROWS", rows)
        model = load_for_scoring(micro_folder, options)
        assert model.max_logit_rows == rows
        assert measured(model).nlls == want


def test_the_first_windows_are_those_of_the_whole(exact: LoadedModel) -> None:
    whole, part = measured(exact), measured(exact, max_windows=2)
    assert (whole.num_windows, part.num_windows) == (-(-len(TEXT) // WINDOW), 2)
    assert part.nlls == whole.nlls[: 2 * (WINDOW - 1)]


def test_progress_is_told_for_each_window(exact: LoadedModel) -> None:
    told: list[tuple[int, int, float]] = []
    found = measured(exact, max_windows=3, progress=lambda *given: told.append(given))
    assert [(done, total) for done, total, _ in told] == [(1, 3), (2, 3), (3, 3)]
    assert told[-1][2] == found.nll_per_token


@pytest.mark.torch
def test_both_executors_agree(micro_folder: Path, exact: LoadedModel) -> None:
    pytest.importorskip("torch")
    theirs = measured(load_for_scoring(micro_folder, replace(EXACT, executor="torch")))
    assert theirs.perplexity == pytest.approx(measured(exact).perplexity, rel=1e-6)


@pytest.mark.oracle
@pytest.mark.torch
def test_perplexity_is_that_of_transformers(micro_folder: Path, exact: LoadedModel) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.LlamaForCausalLM.from_pretrained(micro_folder, dtype=torch.float32)
    assert measured(exact).perplexity == pytest.approx(
        theirs(model.eval(), exact.tokenizer.encode(TEXT), WINDOW), rel=1e-6
    )


def theirs(model: Any, token_ids: list[int], window: int) -> float:
    """Windows cut by hand, the loss by torch: cross-entropy in float64 over the shifted rows."""
    import torch

    losses = []
    for at in range(0, len(token_ids), window):
        ids = torch.tensor([token_ids[at : at + window]])
        with torch.inference_mode():
            logits = model(ids).logits[0, :-1].double()
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
    return math.exp(float(torch.cat(losses).mean()))


@pytest.mark.oracle
@pytest.mark.torch
@pytest.mark.model
@pytest.mark.slow
def test_perplexity_of_the_real_model_is_that_of_transformers(
    smollm2_path: Path, passages: str
) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()
    ours = load_for_scoring(smollm2_path, EXACT)
    token_ids = ours.tokenizer.encode(passages)[: 2 * 512]
    got = perplexity(ours, passages, max_windows=2)
    assert got.num_tokens == 2 * 511
    assert got.perplexity == pytest.approx(theirs(model, token_ids, 512), rel=1e-4)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("window", {"window": 1}),
        ("window", {"window": 513}),  # the context has 512
        ("window", {"window": True}),
        ("windows", {"max_windows": 0}),
        ("text", {"text": "a"}),
        ("text", {"text": ""}),
    ],
)
def test_what_cannot_be_measured_is_refused(
    exact: LoadedModel, field: str, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        perplexity(exact, options.pop("text", TEXT), **options)
    assert refused.value.field == field


def test_a_model_that_an_engine_runs_is_left_alone(exact: LoadedModel) -> None:
    with LLM(exact), pytest.raises(InvalidRequest, match="close it first"):
        measured(exact)
    assert measured(exact, max_windows=1).num_windows == 1


def test_a_perplexity_that_is_no_number_is_an_error(
    exact: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "score", lambda *_: [2000.0])
    with pytest.raises(EngineError, match="beyond the range"):
        measured(exact)
