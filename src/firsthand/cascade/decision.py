"""What a cascade decided for one request, and what that took: the facts that are told of it.

Owns: the reasons, both costs, the one form of all this in replies, logs, traces and records.
May not know: how it was decided (`confidence.py`), who tells it.
Read next: `calibration.py`.
"""

from __future__ import annotations

from typing import Any

from firsthand.values import dataclass

SURE, UNSURE, TOO_LONG, UNCALIBRATED = "sure", "unsure", "too_long", "uncalibrated"
REASONS = (SURE, UNSURE, TOO_LONG, UNCALIBRATED)


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason`: sure; unsure; too_long, for the small model; uncalibrated, for one of the two is
    another model than was measured. In all but the first the large one answers. `confidence` is
    what was measured of answers like the least sure one, and None where there was none."""

    reason: str
    threshold: float
    confidence: float | None = None

    @property
    def escalated(self) -> bool:
        return self.reason != SURE


@dataclass(frozen=True, slots=True)
class Spent:
    """What one of the two models computed for a request: tokens of the prompt that were in no
    cache, and of answers, also of those that nobody got."""

    model: str
    prompt_tokens: int
    output_tokens: int
    parameters: int

    @property
    def cost(self) -> int:
        """In tokens × parameters: half of its multiplications and additions, about."""
        return (self.prompt_tokens + self.output_tokens) * self.parameters

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "cost": self.cost,
        }


@dataclass(frozen=True, slots=True)
class Told:
    """One request to the cascade `name`. `decision` None: it ended before there was one."""

    name: str
    decision: Decision | None
    small: Spent | None
    large: Spent | None
    attempt_ms: float = 0.0  # that the small one took before the large one was asked

    @property
    def answered_by(self) -> str | None:
        by = None
        if self.decision is not None:
            by = self.large if self.decision.escalated else self.small
        return None if by is None else by.model

    def to_dict(self) -> dict[str, Any]:
        decision = self.decision
        return {
            "name": self.name,
            "answered_by": self.answered_by,
            "escalated": None if decision is None else decision.escalated,
            "reason": None if decision is None else decision.reason,
            "confidence": None if decision is None else decision.confidence,
            "threshold": None if decision is None else decision.threshold,
            "attempt_ms": round(self.attempt_ms, 3),
            "small": None if self.small is None else self.small.to_dict(),
            "large": None if self.large is None else self.large.to_dict(),
        }
