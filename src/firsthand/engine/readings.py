"""What is read of a prompt's own rows: how likely each token was, and sums of hidden states.

Owns: in how many rows at once logits are made, and the order in which hidden states are added.
May not know: why a row is read, what becomes of it.
Read next: `runner.py`, which calls it after the step's draws; `scheduling/reading.py`.

A score is what the draw of that token would have reported, by the same native call: the mask lets
nothing else be drawn, and is applied after the logprobs. So its bits are those of the same token
generated. Logits of a step's rows would fill the memory, so they are made again and again in the
memory of the draws' own: `max_rows` at a time.

A sum adds row after row, from the first, in float64, and goes on from step to step in the plan. So
neither the cut of a prompt into steps nor the rest of the batch changes a bit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.executor import Executor
from firsthand.engine.sampler import Masks, Sampled, SampleOutcome
from firsthand.errors import EngineError
from firsthand.request import SamplingParams, TokenScore
from firsthand.scheduling.plan import Draw, Pool, Score, SequenceSlice, WasRead

Sample = Callable[[NDArray[np.float32], Sequence[Draw], Masks | None], Sampled]
SUM = np.dtype("<f8")


class Readings:
    """Reads rows of the step that an executor has just run."""

    def __init__(self, executor: Executor, sample: Sample, max_rows: int) -> None:
        self._executor = executor
        self._sample = sample
        self._max_rows = max_rows
        self._draws: dict[int, Draw] = {}  # by number of alternatives

    def read(
        self, slices: Sequence[SequenceSlice], row_starts: NDArray[np.int32]
    ) -> tuple[WasRead, ...]:
        """One per slice that has a `read`, in order; row_starts (S,) tells where each begins."""
        asking = [(piece, int(row_starts[i])) for i, piece in enumerate(slices) if piece.read]
        wanted: list[tuple[int, int, int]] = []
        for piece, row in asking:
            if isinstance(piece.read, Score):
                first, targets, num_alternatives = piece.read
                rows = range(row + first, row + first + len(targets))
                wanted += [(r, t, num_alternatives) for r, t in zip(rows, targets, strict=True)]
        outcomes = iter(self._outcomes(wanted))
        return tuple(
            _scored(piece.sequence_id, [next(outcomes) for _ in piece.read.targets])
            if isinstance(piece.read, Score)
            else self._pooled(piece, row)
            for piece, row in asking
        )

    def _outcomes(self, wanted: Sequence[tuple[int, int, int]]) -> list[SampleOutcome]:
        """Of (row, token, alternatives) each."""
        found: list[SampleOutcome] = []
        for start in range(0, len(wanted), self._max_rows):
            rows, targets, counts = zip(*wanted[start : start + self._max_rows], strict=True)
            logits = self._executor.logits(np.array(rows, dtype=np.int32))
            masks = np.zeros((len(rows), -(-logits.shape[1] // 32)), dtype=np.uint32)
            ids = np.array(targets)
            masks[np.arange(len(rows)), ids // 32] = np.uint32(1) << (ids % 32).astype(np.uint32)
            draws = [self._draws.get(count) or self._draw(count) for count in counts]
            sampled = self._sample(logits, draws, Masks(masks, list(range(len(rows)))))
            found += [sampled.reports[row] for row in range(len(rows))]
        return found

    def _draw(self, num_alternatives: int) -> Draw:
        sampling = SamplingParams(temperature=0.0, logprobs=num_alternatives)
        draw = self._draws[num_alternatives] = Draw(sampling, seed=0, position=0)
        return draw

    def _pooled(self, piece: SequenceSlice, row: int) -> WasRead:
        assert isinstance(piece.read, Pool), "a read is one or the other"
        first, carry = piece.read
        rows = np.arange(row + first, row + len(piece.token_ids), dtype=np.int32)
        hidden = self._executor.hidden(rows)
        total = np.frombuffer(carry, SUM).copy() if carry else np.zeros(hidden.shape[1], SUM)
        for values in hidden:
            total += values
        if not np.isfinite(total).all():
            return WasRead(piece.sequence_id, error="hidden states are not finite")
        return WasRead(piece.sequence_id, carry=total.tobytes())


def _scored(sequence_id: int, outcomes: Sequence[SampleOutcome]) -> WasRead:
    scores = []
    for outcome in outcomes:
        if outcome.error is not None:
            return WasRead(sequence_id, error=outcome.error)
        if outcome.logprob is None:
            raise EngineError("the sampler told no log-probability")
        scores.append(TokenScore(outcome.logprob, outcome.top_logprobs))
    return WasRead(sequence_id, tuple(scores))
