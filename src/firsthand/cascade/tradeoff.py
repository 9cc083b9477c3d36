"""Quality against cost: what a cascade would give at every threshold, from answers of both models.

Owns: a sample, the points of the curve, what the same share sent to the large one at random gives.
May not know: how a sample was made, how a curve is drawn.
Read next: `calibration.py`; `evaluate/cascade.py`, which makes the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from firsthand.cascade.calibration import Calibration
from firsthand.cascade.confidence import judged
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt, answered by both. Qualities are 0 … 1. `small_ms` is the time until each token of
    the small one's answer, with its prompt's, and as long as `logprobs`; at least one."""

    logprobs: tuple[float, ...]
    small_ms: tuple[float, ...]
    small_prompt_tokens: int
    large_prompt_tokens: int
    large_tokens: int
    large_ms: float
    small_quality: float
    large_quality: float

    @property
    def worth(self) -> float:
        """The part of the large one's quality that the small one reached, at most 1."""
        if self.small_quality >= self.large_quality:
            return 1.0
        return self.small_quality / self.large_quality


@dataclass(frozen=True, slots=True)
class Point:
    """One threshold. `cost` in tokens × parameters and `time` are by those of the large one alone;
    `chance_quality` is that of as many answers escalated at random."""

    confidence: float
    escalated: float
    quality: float
    chance_quality: float
    cost: float
    time: float


def curve(calibration: Calibration, samples: Sequence[Sample]) -> list[Point]:
    """From never escalating (confidence 0) on, at each threshold that changes anything."""
    worths = sorted({worth for _, worth in calibration.steps if worth > 0})
    found = [point(calibration, samples, worth) for worth in (0.0, *worths)]
    shown: list[Point] = []
    for one in found:
        if not shown or one.escalated != shown[-1].escalated:
            shown.append(one)
    return shown


def point(calibration: Calibration, samples: Sequence[Sample], confidence: float) -> Point:
    rule = calibration.rule(confidence)
    small, large = calibration.small.parameters, calibration.large.parameters
    escalated: list[bool] = []
    qualities, costs, times = [], [], []
    for one in samples:
        hearing = judged(rule, one.logprobs)
        goes = hearing.verdict is False
        num_tokens = hearing.num_tokens if goes else len(one.logprobs)
        cost = (one.small_prompt_tokens + num_tokens) * small
        time = one.small_ms[num_tokens - 1]
        if goes:
            cost += (one.large_prompt_tokens + one.large_tokens) * large
            time += one.large_ms
        escalated.append(goes)
        qualities.append(one.large_quality if goes else one.small_quality)
        costs.append(cost)
        times.append(time)
    share = sum(escalated) / len(samples)
    by_small = fsum(one.small_quality for one in samples) / len(samples)
    by_large = fsum(one.large_quality for one in samples) / len(samples)
    full_cost = sum((one.large_prompt_tokens + one.large_tokens) * large for one in samples)
    full_ms = fsum(one.large_ms for one in samples)
    return Point(
        confidence=confidence,
        escalated=share,
        quality=fsum(qualities) / len(samples),
        chance_quality=by_small + (by_large - by_small) * share,
        cost=sum(costs) / full_cost,
        time=fsum(times) / full_ms if full_ms else 0.0,
    )
