"""Whether guesses pay: from the measured times of steps, and from how often guesses were right.

Owns: what a step with guesses costs beside one without, and how many guesses are worth it.
May not know: tokens, who guesses. What is decided here changes when a token comes, never which.
Read next: `speculation.py`.

A step of S sequences draws S tokens in the time c(S). With d guesses it takes ρ(S, d) times as long
and draws, on average, a tokens more: if a guess is right with the probability p where those before
it were, the i-th of a sequence adds p to the power of i. So d guesses are worth a/S − (ρ − 1), in
steps. The guesses are taken in the order of what they add, as many as are worth the most.

Times are compared as ratios of steps of the same S that are not far apart: c(S) grows with the
context, and is measured anew by a step without guesses when its last one is long ago. Times of a
machine that others use too are noisy, so a single one can move an estimate only so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from firsthand.values import dataclass

MARGIN = 0.02  # of a step: what guesses must be worth, for an estimate is none better
FIRST_SLOPE = 0.2  # of a step per guess, before anything was measured
STALE_STEPS = 64
WEIGHT = 0.2  # of a new time in an estimate
FAIR_RATE = 0.5  # a guess as likely as this that is refused was too dear: perhaps no longer
MOST_CERTAIN = 0.98


@dataclass(slots=True)
class Rate:
    """How often guesses were right, the last ones above all; `prior` counts as one guess."""

    decay: float
    right: float = 0.0
    judged: float = 0.0

    def add(self, num_right: int, num_judged: int) -> None:
        self.right = self.right * self.decay + num_right
        self.judged = self.judged * self.decay + num_judged

    def estimate(self, prior: float) -> float:
        return min(MOST_CERTAIN, (self.right + prior) / (self.judged + 1.0))


@dataclass(slots=True)
class _Plain:
    """c(S), and when it was measured last."""

    ms: float
    at_step: int


@dataclass(slots=True)
class Payoff:
    """Of one engine. For one thread."""

    _num_steps: int = 0
    _plain: dict[int, _Plain] = field(default_factory=dict)  # by S
    _slopes: dict[int, dict[int, float]] = field(default_factory=dict)  # (ρ − 1)/d, by S and d
    _round_cost: float = 0.0  # of making one guess of each sequence, in steps

    def learn(self, num_sequences: int, num_guesses: int, ms: float) -> None:
        """A step of sequences with one known token each, and so many guesses, took this long."""
        self._num_steps += 1
        plain = self._plain.get(num_sequences)
        if not num_guesses:
            known_ms = ms if plain is None else _moved(plain.ms, ms)
            self._plain[num_sequences] = _Plain(known_ms, self._num_steps)
        elif plain is not None and plain.ms > 0:
            slope = max(0.0, ms / plain.ms - 1) / num_guesses
            slopes = self._slopes.setdefault(num_sequences, {})
            old = slopes.get(num_guesses)
            slopes[num_guesses] = slope if old is None else _moved(old, slope)

    def learn_round(self, num_sequences: int, ms: float) -> None:
        """To make one guess for each of its sequences took this long."""
        plain = self._plain.get(num_sequences)
        if plain is not None and plain.ms > 0:
            cost = ms / plain.ms
            self._round_cost = cost if not self._round_cost else _moved(self._round_cost, cost)

    def knows(self, num_sequences: int) -> bool:
        """Whether the time of a step without guesses is known, and not stale."""
        plain = self._plain.get(num_sequences)
        return plain is not None and self._num_steps - plain.at_step < STALE_STEPS

    def lengths(
        self, offers: Sequence[tuple[float, int]], num_sequences: int, most: int, *, is_free: bool
    ) -> list[int]:
        """How many guesses of each offer (rate, size) to compute, at most `most` in all."""
        lengths = [0] * len(offers)
        if not self.knows(num_sequences):
            return lengths
        round_cost = 0.0 if is_free else self._round_cost
        worth, best, gain, rounds, num_best = 0.0, MARGIN, 0.0, 0, 0
        ordered = in_order(offers, most)
        for count, (rate, depth, _) in enumerate(ordered, 1):
            gain += rate
            rounds = max(rounds, depth)
            dearer = count * self._slope(num_sequences, count)
            worth = gain / num_sequences - dearer - rounds * round_cost
            if worth > best:
                best, num_best = worth, count
        for _, _, index in ordered[:num_best]:
            lengths[index] += 1
        if ordered and not num_best and ordered[0][0] > FAIR_RATE:
            self._doubt(num_sequences)
        return lengths

    def _slope(self, num_sequences: int, num_guesses: int) -> float:
        """That of the nearest number that was measured."""
        slopes = self._slopes.get(num_sequences)
        if not slopes:
            return FIRST_SLOPE / num_sequences
        return slopes[min(slopes, key=lambda count: abs(count - num_guesses))]

    def _doubt(self, num_sequences: int) -> None:
        """What was dear once is tried again, some day."""
        slopes = self._slopes.get(num_sequences, {})
        for count in slopes:
            slopes[count] *= 0.99
        self._round_cost *= 0.99


def in_order(offers: Sequence[tuple[float, int]], most: int) -> list[tuple[float, int, int]]:
    """(what it adds, depth in its sequence, index of the offer) of the best `most` guesses."""
    each = [
        (rate**depth, depth, index)
        for index, (rate, size) in enumerate(offers)
        for depth in range(1, size + 1)
    ]
    each.sort(key=lambda one: (-one[0], one[1], one[2]))
    return each[:most]


def _moved(old: float, new: float) -> float:
    """Towards the new one, which counts for no less than half and no more than twice the old; a
    ratio near 0 can leave it."""
    return old + WEIGHT * (min(max(new, old / 2), old + max(old, 0.05)) - old)
