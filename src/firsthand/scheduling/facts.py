"""What a plan did, as values: for whoever reports it.

Owns: `PlanFacts`, `Admitted` and `Preempted`. May not know: who listens, what a step costs.
Read next: `scheduler.py`, which makes one per plan; `engine/facts.py`, which holds it.
"""

from __future__ import annotations

from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that began to run in a step, or came back after an eviction (`resumed`).

    `num_cached_tokens` of its known tokens were found computed. `waited_s` is since its arrival.
    It holds `num_blocks` from here on, those that it shares included.
    """

    request_id: str
    index: int
    waited_s: float
    num_cached_tokens: int
    resumed: bool = False
    num_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Preempted:
    """A sequence that went back to the queue; it gave up its blocks, and what was computed."""

    request_id: str
    index: int
    num_blocks: int
    num_computed_tokens: int


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What a plan did, beside its slices.

    `num_recomputed` tokens had been computed before an eviction. `served_by_class` are the tokens
    of the step: urgent, normal, background.
    """

    admitted: tuple[Admitted, ...] = ()
    preempted: tuple[Preempted, ...] = ()
    num_recomputed: int = 0
    num_copies: int = 0
    served_by_class: tuple[int, ...] = ()

    @property
    def num_preempted(self) -> int:
        return len(self.preempted)

    @property
    def num_prefix_hit_tokens(self) -> int:
        """Tokens that nobody had to compute, because an equal prefix was found."""
        return sum(one.num_cached_tokens for one in self.admitted)
