"""The real runner: a plan goes through executor and sampler, and comes back as tokens.

Owns: the order of a step's work, its two times, and the hand-over from logits to the sampler.
May not know: who waits, why a sequence runs, what a token means, formats of weights.
Read next: `batching.py` (the plan as arrays), `sampler.py` (logits become tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.batch import FlatBatch
from firsthand.compute.executor import SHORTLIST, Executor, OpTime, PicksBest
from firsthand.engine.batching import Batcher, flat_batch
from firsthand.engine.constraints import Constraints
from firsthand.engine.guessing.speculation import Speculation, draws_of, kept
from firsthand.engine.readings import Readings, Sample
from firsthand.engine.sampler import Masks
from firsthand.engine.sampler_reference import GREEDY_BELOW
from firsthand.errors import EngineError
from firsthand.kvcache.store import KVStore
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import (
    Draw,
    Drawn,
    SequenceSlice,
    StepPlan,
    StepResult,
    WasRead,
)


class ModelRunner:
    """Executor, store and sampler as a `Runner`. What it keeps between two steps (block tables in
    `batching`, settings in `sampler`, places in a grammar in `constraints`) saves time and cannot
    change a result: each says why. Without `constraints`, a draw with a grammar is a fault; so is
    a `read` without `readings`. Without a `speculation` nothing is guessed."""

    def __init__(
        self,
        executor: Executor,
        store: KVStore,
        vocab_size: int,
        sample: Sample,
        clock: Callable[[], float],
        constraints: Constraints | None = None,
        readings: Readings | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self._executor = executor
        self._picks = executor if isinstance(executor, PicksBest) else None
        self._store = store
        self._vocab_size = vocab_size
        self._sample = sample
        self._clock = clock
        self._batcher = Batcher(store)
        self._constraints = constraints
        self._readings = readings
        self._speculation = speculation

    def run(self, plan: StepPlan) -> StepResult:
        for copy in plan.copies:
            self._store.copy_block(copy.source, copy.target)
        if not plan.slices:
            return StepResult((), forward_ms=0.0, sample_ms=0.0)
        if plan.max_guesses and self._speculation is not None:
            return self._run_guessing(plan, self._speculation)
        return self._run(plan)

    def _run_guessing(self, plan: StepPlan, speculation: Speculation) -> StepResult:
        began_s = self._clock()
        guessed = speculation.extend(plan)
        guess_ms = (self._clock() - began_s) * 1e3
        result = self._run(guessed)
        speculation.learn(len(plan.slices), result.forward_ms + result.sample_ms)
        return replace(result, guess_ms=guess_ms)

    def _run(self, plan: StepPlan) -> StepResult:
        if plan.max_guesses:
            drawing = [one for piece in plan.slices if piece.draw for one in draws_of(piece)]
        else:
            drawing = [(piece.sequence_id, piece.draw) for piece in plan.slices if piece.draw]
        batch = self._batcher.batch(plan)
        started_s = self._clock()
        if self._picks is not None and _is_picked(plan, drawing):
            picked = self._pick(self._picks, batch, drawing)
            if picked is not None:
                return picked
        logits = self._executor.run(batch, self._store)
        ran_s = self._clock()
        if logits.shape != (len(drawing), self._vocab_size):
            wanted = (len(drawing), self._vocab_size)
            raise EngineError(f"the executor gave logits {logits.shape} instead of {wanted}")
        drawn = self._draw(logits, drawing) if drawing else ()
        if plan.max_guesses:
            drawn = tuple(kept([piece for piece in plan.slices if piece.draw], drawn))
        reads: tuple[WasRead, ...] = ()
        if any(piece.read for piece in plan.slices):  # in the draws' memory, so after them
            if self._readings is None:
                raise EngineError("a prompt was to be read, and nothing here can")
            reads = self._readings.read(plan.slices, batch.row_starts)
        sampled_s = self._clock()
        return StepResult(
            drawn,
            forward_ms=(ran_s - started_s) * 1e3,
            sample_ms=(sampled_s - ran_s) * 1e3,
            reads=reads,
        )

    def _pick(
        self, executor: PicksBest, batch: FlatBatch, drawing: Sequence[tuple[int, Draw]]
    ) -> StepResult | None:
        """The outcome of a step for whose draws a few logits of a row are enough; None: they are
        not, and the step is to be run and sampled as any other: what is wrong with a row, the
        sampler says."""
        started_s = self._clock()
        if all(_is_greedy(draw) for _, draw in drawing):
            ids = executor.run_best(batch, self._store).tolist()
            if len(ids) != len(drawing) or -1 in ids:
                return None
            drawn = tuple(Drawn(one[0], token) for one, token in zip(drawing, ids, strict=True))
            return StepResult(drawn, forward_ms=(self._clock() - started_s) * 1e3, sample_ms=0.0)
        found = executor.run_shortlist(batch, self._store)
        ran_s = self._clock()
        if len(found.ids) != len(drawing) or not found.is_certain:
            return None
        drawn = tuple(
            one._replace(token_id=int(ids[one.token_id]))
            for one, ids in zip(self._draw(found.logits, drawing), found.ids, strict=True)
        )
        sample_ms = (self._clock() - ran_s) * 1e3
        return StepResult(drawn, forward_ms=(ran_s - started_s) * 1e3, sample_ms=sample_ms)

    def _draw(
        self, logits: NDArray[np.float32], drawing: Sequence[tuple[int, Draw]]
    ) -> tuple[Drawn, ...]:
        masks: Masks | None = None
        faults: dict[int, str] = {}
        if any(draw.grammar is not None for _, draw in drawing):
            if self._constraints is None:
                raise EngineError("a grammar was asked for, and nothing here knows any")
            masks, faults = self._constraints.masks(drawing)
        sampled = self._sample(logits, [draw for _, draw in drawing], masks)
        ids = [sequence_id for sequence_id, _ in drawing]
        drawn = list(map(Drawn, ids, sampled.token_ids))
        for row, outcome in sampled.reports.items():
            drawn[row] = Drawn(ids[row], *outcome)
        for row, fault in faults.items():
            drawn[row] = Drawn(ids[row], -1, error=fault)
        return tuple(drawn)

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


def _is_picked(plan: StepPlan, drawing: Sequence[tuple[int, Draw]]) -> bool:
    """Whether each draw of the step is from the likeliest tokens, a few of them, and nothing is
    asked of the others. The sampler draws by the order of logits and of ids, so what is drawn from
    these tokens alone, in the order of ids, is what is drawn from all."""
    if plan.max_guesses or any(piece.read for piece in plan.slices):
        return False
    return all(
        (_is_greedy(draw) or 0 < draw.sampling.top_k <= SHORTLIST)
        and draw.grammar is None
        and draw.sampling.logprobs is None
        and not (draw.sampling.needs_history or draw.sampling.logit_bias)
        for _, draw in drawing
    )


def _is_greedy(draw: Draw) -> bool:
    return draw.sampling.temperature < GREEDY_BELOW


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
