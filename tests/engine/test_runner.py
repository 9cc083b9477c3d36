"""Plan integers become arrays, logits become tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import SHORTLIST, Held, ModelProgram, OpTime, Shortlist
from firsthand.engine.runner import ModelRunner, trace_plans
from firsthand.engine.sampler import Masks, Sampled, SampleOutcome, Sampler
from firsthand.errors import EngineError
from firsthand.kvcache.contiguous import ContiguousStore
from firsthand.kvcache.store import KVStore
from firsthand.quant.formats import WeightSource
from firsthand.quant.low_rank import LowRank
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import BlockCopy, Draw, Drawn, SequenceSlice, StepPlan

VOCAB = 6
DRAW = Draw(SamplingParams(), seed=1, position=2)
PLAN = StepPlan(
    (
        SequenceSlice(4, (1, 2, 3), 5, (1,), None),
        SequenceSlice(7, (4,), 0, (0,), DRAW),
        SequenceSlice(9, (5, 0), 2, (2,), DRAW),
    )
)


def argmax(
    logits: NDArray[np.float32], draws: Sequence[Draw], masks: Masks | None = None
) -> Sampled:
    """The second row has logprobs."""
    assert len(draws) == len(logits)
    best = [int(row.argmax()) for row in logits]
    return Sampled(best, {1: SampleOutcome(best[1], float(logits[1].max()), ((0, -1.0),))})


class FakeExecutor:
    """The most likely next token is the row's own token."""

    name = "fake"

    def __init__(self, vocab: int = VOCAB) -> None:
        self.vocab = vocab

    def load_weight(self, source: WeightSource) -> None: ...
    def load_vector(self, name: str, values: NDArray[np.float32]) -> None: ...
    def alias(self, name: str, target: str) -> None: ...
    def prepare(self, program: ModelProgram, max_tokens: int, max_logit_rows: int) -> None: ...
    def add_adapter(self, name: str, factors: Sequence[LowRank]) -> None: ...

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        logits = np.zeros((len(batch.logit_rows), self.vocab), dtype=np.float32)
        logits[np.arange(len(logits)), batch.token_ids[batch.logit_rows]] = 2.0
        return logits

    def logits(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        raise NotImplementedError

    hidden = logits

    def trace(self, batch: FlatBatch, store: KVStore) -> tuple[NDArray[np.float32], list[OpTime]]:
        return self.run(batch, store), [OpTime("embed", "", (batch.num_tokens, 4), 0.1, 16)]

    def memory(self) -> Held:
        return Held(0, 0)


def store() -> ContiguousStore:
    return ContiguousStore(1, 1, 2, num_slots=3 * 16, max_tokens=16)


def runner(executor: FakeExecutor) -> ModelRunner:
    ticks = iter(range(100))
    return ModelRunner(executor, store(), VOCAB, argmax, lambda: float(next(ticks)))


def test_each_slice_with_a_draw_gets_its_token_in_order() -> None:
    result = runner(FakeExecutor()).run(PLAN)
    assert result.drawn == (
        Drawn(7, 4),
        Drawn(9, 0, logprob=2.0, top_logprobs=((0, -1.0),)),
    )
    assert (result.forward_ms, result.sample_ms) == (1000.0, 1000.0)


def shortlist(logits: NDArray[np.float32], count: int) -> Shortlist:
    """Of equal ones the last."""
    order = np.argsort(-logits[:, ::-1], axis=1, kind="stable")
    ranked = logits.shape[1] - 1 - order
    ids = np.sort(ranked[:, :count], axis=1).astype(np.int32)
    values = np.take_along_axis(logits, ranked, axis=1)
    edges = np.pad(values, ((0, 0), (0, 1)), constant_values=-np.inf)[:, [0, count - 1, count]]
    return Shortlist(ids, np.take_along_axis(logits, ids.astype(int), axis=1), edges)


class Picking(FakeExecutor):
    """Names the best token itself; `ids` as it is told."""

    def __init__(self, *ids: int) -> None:
        super().__init__()
        self.ids = ids
        self.num_runs = 0

    def run_best(self, batch: FlatBatch, store: KVStore) -> NDArray[np.int32]:
        return np.array(self.ids, np.int32)

    def run_shortlist(self, batch: FlatBatch, store: KVStore) -> Shortlist:
        return shortlist(super().run(batch, store), len(self.ids))

    def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
        self.num_runs += 1
        return super().run(batch, store)


def with_sampling(**options: Any) -> StepPlan:
    """The plan, with such draws."""
    slices = [
        piece._replace(draw=piece.draw and piece.draw._replace(sampling=SamplingParams(**options)))
        for piece in PLAN.slices
    ]
    return StepPlan(tuple(slices))


def test_plain_greedy_draws_take_the_tokens_that_the_executor_picks() -> None:
    executor = Picking(3, 2)
    result = runner(executor).run(with_sampling(temperature=0.0))
    assert [one.token_id for one in result.drawn] == [3, 2]
    assert executor.num_runs == 0
    assert result.sample_ms == 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 0.0, "logprobs": 1},
        {"temperature": 0.0, "logit_bias": ((1, 2.0),)},
        {"temperature": 0.0, "frequency_penalty": 0.5},
        {"top_k": 3, "logprobs": 0},
        {"top_k": 3, "logit_bias": ((1, 2.0),)},
        {"top_k": 3, "repetition_penalty": 1.1},
        {"top_k": SHORTLIST + 1},
        {"top_k": 3},  # of five equal logits some are listed: they could be others
    ],
)
def test_any_other_draw_is_the_samplers(options: dict[str, Any]) -> None:
    executor = Picking(3, 2)
    result = runner(executor).run(with_sampling(**options))
    assert [one.token_id for one in result.drawn] == [4, 0]
    assert executor.num_runs == 1


def test_a_row_without_a_best_token_goes_to_the_sampler() -> None:
    executor = Picking(3, -1)
    result = runner(executor).run(with_sampling(temperature=0.0))
    assert [one.token_id for one in result.drawn] == [4, 0]


def test_draws_from_a_few_tokens_take_a_shortlist() -> None:
    executor = Picking(0)  # of length 1
    result = runner(executor).run(with_sampling(top_k=1))
    assert [one.token_id for one in result.drawn] == [4, 0]
    assert executor.num_runs == 0
    assert (result.forward_ms, result.sample_ms) == (1000.0, 1000.0)


@pytest.mark.native
@pytest.mark.parametrize("seed", range(12))
def test_what_is_drawn_from_a_shortlist_is_what_is_drawn_from_all(seed: int) -> None:
    """Rows with equal logits and masked tokens; every filter beside top-k, and greedy rows."""
    made = np.random.default_rng(seed)
    vocab, num_rows = 700, 8
    logits = np.round(made.normal(0, 4, (num_rows, vocab)), 1).astype(np.float32)
    logits[made.random(logits.shape) < 0.3] = -np.inf
    draws = [
        Draw(
            SamplingParams(
                temperature=float(made.choice([0.0, 0.3, 1.0, 3.0])),
                top_k=int(made.integers(1, SHORTLIST)),
                top_p=float(made.choice([0.5, 0.9, 1.0])),
                min_p=float(made.choice([0.0, 0.01, 0.2])),
            ),
            seed=seed,
            position=row,
        )
        for row in range(num_rows)
    ]
    count = next(n for n in range(SHORTLIST, vocab) if shortlist(logits, n).is_certain)
    found = shortlist(logits, count)
    chosen = Sampler()(found.logits, draws)
    wanted = Sampler()(logits, draws)
    assert not (chosen.reports or wanted.reports)
    assert [int(ids[i]) for ids, i in zip(found.ids, chosen.token_ids, strict=True)] == (
        wanted.token_ids
    )


def test_copies_are_made_in_order_before_anything_is_computed() -> None:
    calls: list[object] = []

    class Copying(ContiguousStore):
        def copy_block(self, source: int, target: int) -> None:
            calls.append((source, target))

    class Computing(FakeExecutor):
        def run(self, batch: FlatBatch, store: KVStore) -> NDArray[np.float32]:
            calls.append("run")
            return super().run(batch, store)

    memory = Copying(1, 1, 2, num_slots=3 * 16, max_tokens=16)
    copies = (BlockCopy(0, 1), BlockCopy(1, 2))
    ModelRunner(Computing(), memory, VOCAB, argmax, lambda: 0.0).run(StepPlan(PLAN.slices, copies))
    assert calls == [(0, 1), (1, 2), "run"]


def test_an_empty_plan_runs_nothing() -> None:
    assert runner(FakeExecutor()).run(StepPlan(())).drawn == ()


def test_a_step_in_the_middle_of_a_prompt_draws_nothing() -> None:
    assert runner(FakeExecutor()).run(StepPlan(PLAN.slices[:1])).drawn == ()


def test_logits_of_another_shape_are_a_fault() -> None:
    with pytest.raises(EngineError, match=r"\(2, 5\) instead of \(2, 6\)"):
        runner(FakeExecutor(vocab=5)).run(PLAN)


def test_the_samplers_errors_are_passed_on() -> None:
    def refuse(
        logits: NDArray[np.float32], draws: Sequence[Draw], masks: Masks | None = None
    ) -> Sampled:
        return Sampled([1, -1], {1: SampleOutcome(-1, error="no finite logit")})

    broken = ModelRunner(FakeExecutor(), store(), VOCAB, refuse, lambda: 0.0)
    assert broken.run(PLAN).drawn == (Drawn(7, 1), Drawn(9, -1, error="no finite logit"))


@pytest.mark.parametrize(
    ("last_only", "shapes"),
    [
        (False, [(0, 4, True)]),
        (True, [(0, 4, False), (4, 4, False), (8, 1, False), (9, 1, True)]),
    ],
)
def test_a_trace_is_of_the_prompts_first_step_or_of_its_last_token(
    last_only: bool, shapes: list[tuple[int, int, bool]]
) -> None:
    plans = trace_plans(tuple(range(10)), (2,), 4, last_only=last_only)
    pieces = [plan.slices[0] for plan in plans]
    found = [(piece.start, len(piece.token_ids), piece.draw is not None) for piece in pieces]
    assert found == shapes
    assert all(piece.block_ids == (2,) for piece in pieces)


@pytest.mark.parametrize("last_only", [False, True])
def test_trace_lists_the_operators(last_only: bool) -> None:
    traced = runner(FakeExecutor()).trace((1, 2, 3), (2,), 8, last_only=last_only)
    assert [op.shape for op in traced] == [(1 if last_only else 3, 4)]
    (op,) = runner(FakeExecutor()).trace((1,), (2,), 8, last_only=last_only)
    assert op.shape == (1, 4)
