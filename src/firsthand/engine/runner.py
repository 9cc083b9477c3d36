"""The real runner: the only place where plan integers become arrays.

Owns: the flat batch of a step, and the hand-over from logits to the sampler.
May not know: who waits, why a sequence runs, what a token means, formats of weights.
Read next: `compute/batch.py` (the batch), `sampler.py` (logits become tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import Executor, OpTime
from firsthand.engine.sampler import SampleOutcome
from firsthand.errors import EngineError
from firsthand.kvcache.store import KVStore
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw, Drawn, SequenceSlice, StepPlan, StepResult

Sampler = Callable[[NDArray[np.float32], Sequence[Draw]], Sequence[SampleOutcome]]


class ModelRunner:
    """Executor, store and sampler as a `Runner`. Keeps no state of its own between steps."""

    def __init__(
        self,
        executor: Executor,
        store: KVStore,
        vocab_size: int,
        sample: Sampler,
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._store = store
        self._vocab_size = vocab_size
        self._sample = sample
        self._clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        if not plan.slices:
            return StepResult((), forward_ms=0.0, sample_ms=0.0)
        drawing = [(piece, piece.draw) for piece in plan.slices if piece.draw is not None]
        started_s = self._clock()
        logits = self._executor.run(flat_batch(plan, self._store), self._store)
        ran_s = self._clock()
        if logits.shape != (len(drawing), self._vocab_size):
            wanted = (len(drawing), self._vocab_size)
            raise EngineError(f"the executor gave logits {logits.shape} instead of {wanted}")
        outcomes = self._sample(logits, [draw for _, draw in drawing]) if drawing else []
        sampled_s = self._clock()
        return StepResult(
            tuple(
                _drawn(piece, outcome)
                for (piece, _), outcome in zip(drawing, outcomes, strict=True)
            ),
            forward_ms=(ran_s - started_s) * 1e3,
            sample_ms=(sampled_s - ran_s) * 1e3,
        )

    def trace(
        self,
        token_ids: tuple[int, ...],
        block_ids: tuple[int, ...],
        max_step_tokens: int,
        *,
        last_only: bool,
    ) -> list[OpTime]:
        """One forward pass over a sequence of its own, with a time per operator.

        `last_only`: that of the last token, after all the others; else that of the first
        `max_step_tokens`. The blocks must hold the sequence and be nobody else's. The traced step
        is run once before: what is shown is a step, not the first touch of the blocks' memory.
        """
        plans = trace_plans(token_ids, block_ids, max_step_tokens, last_only=last_only)
        traced = plans[-1]
        for plan in plans:
            self._executor.run(flat_batch(plan, self._store), self._store)
        return self._executor.trace(flat_batch(traced, self._store), self._store)[1]


def trace_plans(
    token_ids: tuple[int, ...], block_ids: tuple[int, ...], max_step_tokens: int, *, last_only: bool
) -> list[StepPlan]:
    """The steps up to the one to be traced, which is the last and the only one with a draw."""
    bounds = [0, min(len(token_ids), max_step_tokens)]
    if last_only:
        bounds = [*range(0, len(token_ids) - 1, max_step_tokens), len(token_ids) - 1]
        bounds.append(len(token_ids))
    draw = Draw(SamplingParams(temperature=0.0), seed=0, position=bounds[-1])
    slices = [
        SequenceSlice(-1, token_ids[start:stop], start, block_ids, None)
        for start, stop in pairwise(bounds)
    ]
    slices[-1] = slices[-1]._replace(draw=draw)
    return [StepPlan((piece,)) for piece in slices]


def flat_batch(plan: StepPlan, store: KVStore) -> FlatBatch:
    """The plan's slices one after another, in the plan's order. Not for an empty plan."""
    lengths = [len(piece.token_ids) for piece in plan.slices]
    row_starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=row_starts[1:])
    token_ids = np.empty(row_starts[-1], dtype=np.int32)
    positions = np.empty(row_starts[-1], dtype=np.int32)
    max_blocks = max(len(piece.block_ids) for piece in plan.slices)
    block_starts = np.full((len(lengths), max_blocks), -1, dtype=np.int64)
    logit_rows = []
    for row, piece in enumerate(plan.slices):
        first, last = int(row_starts[row]), int(row_starts[row + 1])
        token_ids[first:last] = piece.token_ids
        positions[first:last] = np.arange(piece.start, piece.start + last - first)
        starts = [store.block_start(block_id) for block_id in piece.block_ids]
        block_starts[row, : len(starts)] = starts
        if piece.draw is not None:
            logit_rows.append(last - 1)
    return FlatBatch(
        token_ids=token_ids,
        positions=positions,
        row_starts=row_starts,
        block_starts=block_starts,
        block_size=store.block_size,
        logit_rows=np.array(logit_rows, dtype=np.int32),
    )


def _drawn(piece: SequenceSlice, outcome: SampleOutcome) -> Drawn:
    return Drawn(
        piece.sequence_id,
        outcome.token_id,
        logprob=outcome.logprob,
        top_logprobs=outcome.top_logprobs,
        error=outcome.error,
    )
