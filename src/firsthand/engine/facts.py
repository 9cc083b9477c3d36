"""What the engine says about itself: one typed value per step.

Owns: `StepFacts`, and `BatchFacts` inside.
May not know: metric names, logs, who listens. Nothing outside the standard library.
Read next: `scheduling/facts.py` (what the plan did); `engine.py`, which emits one per step.
"""

from __future__ import annotations

from dataclasses import field

from firsthand.scheduling.facts import PlanFacts
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A batch of requests that generate nothing: so many, and how long the oldest had waited."""

    size: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class GuessFacts:
    """Of one sequence in a step: tokens that were guessed and computed, and how many of them were
    those that the model drew."""

    request_id: str
    num_guesses: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step, measured. Times are milliseconds of the engine's clock.

    `request_ids` and `slice_tokens` go together: who was in the step, with how many tokens, guesses
    that were right among them.
    `run_ms` is the whole of the runner; `forward_ms` and `sample_ms` are parts of it. The counts
    of waiting, running and blocks are those after the commit. `error` is set when the runner
    raised: then `num_attempts` more were made, and `num_failed` sequences were given up;
    `out_of_memory` if it was refused memory. A request's report uses some of it; all of it is for
    the server's metrics.

    By class are: urgent, normal, background. Cached blocks are not used: nobody's, but findable.
    `num_evicted_blocks` of them were given out for something else, since the engine began.
    `batches` of requests that generate nothing began with the step. `guesses` of the sequences that
    had any took `guess_ms`, a part of `run_ms`, to make. `replica` is which of several engines made
    the step, by a small number; the engine itself does not know.
    """

    started_s: float
    request_ids: tuple[str, ...]
    slice_tokens: tuple[int, ...]
    num_drawn: int
    num_finished: int
    num_waiting: int
    num_running: int
    num_used_blocks: int
    plan_ms: float
    run_ms: float
    forward_ms: float
    sample_ms: float
    commit_ms: float
    error: str | None = None
    waiting_by_class: tuple[int, ...] = ()
    running_by_class: tuple[int, ...] = ()
    num_cached_blocks: int = 0
    num_evicted_blocks: int = 0
    planned: PlanFacts = field(default_factory=PlanFacts)
    num_attempts: int = 0
    num_failed: int = 0
    batches: tuple[BatchFacts, ...] = ()
    out_of_memory: bool = False
    guesses: tuple[GuessFacts, ...] = ()
    guess_ms: float = 0.0
    replica: int | None = None

    @property
    def num_tokens(self) -> int:
        return sum(self.slice_tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.request_ids)
