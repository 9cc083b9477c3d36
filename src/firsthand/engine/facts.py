"""What the engine says about itself: one typed value per step.

Owns: `StepFacts`.
May not know: metric names, logs, who listens. Standard library only.
Read next: `engine.py`, which emits one per step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step, measured. Times are milliseconds of the engine's clock.

    `request_ids` and `slice_tokens` go together: who was in the step, with how many tokens.
    `run_ms` is the whole of the runner; `forward_ms` and `sample_ms` are parts of it. The counts
    of waiting, running and blocks are those after the commit. `error` is set when the runner
    failed, and every request of the step has ended with it. A request's report uses some of it;
    all of it is for the server's metrics.
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

    @property
    def num_tokens(self) -> int:
        return sum(self.slice_tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.request_ids)
