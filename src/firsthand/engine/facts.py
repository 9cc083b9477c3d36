"""What the engine says about itself: one typed value per step.

Owns: `StepFacts`, and in it what the plan did.
May not know: metric names, logs, who listens. Standard library only.
Read next: `engine.py`, which emits one per step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that began to run in a step, or came back after an eviction (`resumed`).

    `num_cached_tokens` of its known tokens were found computed. `waited_s` is since its arrival.
    """

    request_id: str
    index: int
    waited_s: float
    num_cached_tokens: int
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What a plan did, beside its slices.

    `num_recomputed` tokens had been computed before an eviction. `served_by_class` are the tokens
    of the step: urgent, normal, background.
    """

    admitted: tuple[Admitted, ...] = ()
    num_preempted: int = 0
    num_recomputed: int = 0
    num_copies: int = 0
    served_by_class: tuple[int, ...] = ()

    @property
    def num_prefix_hit_tokens(self) -> int:
        """Tokens that nobody had to compute, because an equal prefix was found."""
        return sum(one.num_cached_tokens for one in self.admitted)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step, measured. Times are milliseconds of the engine's clock.

    `request_ids` and `slice_tokens` go together: who was in the step, with how many tokens.
    `run_ms` is the whole of the runner; `forward_ms` and `sample_ms` are parts of it. The counts
    of waiting, running and blocks are those after the commit. `error` is set when the runner
    failed, and every request of the step has ended with it. A request's report uses some of it;
    all of it is for the server's metrics.

    By class are: urgent, normal, background. Cached blocks are not used: nobody's, but findable.
    `num_evicted_blocks` of them were given out for something else, since the engine began.
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
    planned: PlanFacts = PlanFacts()

    @property
    def num_tokens(self) -> int:
        return sum(self.slice_tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.request_ids)
