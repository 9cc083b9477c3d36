"""How sure a model was of the beginning of its answer, and when that is known.

Owns: the measures, and the earliest token at which the verdict can be told.
May not know: text, models, what a score is worth (`calibration.py`).
Read next: `calibration.py`, which makes the rules.

A score is made of the log-probabilities of an answer's first tokens, by the model's own
distribution: `mean` of them, or the `least`. It is at most 0. What comes later can only lower it
or, of a mean, hardly raise it, so a bad beginning is known before the window is full; the verdict
is always that of the whole window, whatever pieces the tokens come in.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from firsthand.checks import check_choice, check_integer
from firsthand.values import dataclass

MEASURES = ("mean", "least")
MAX_WINDOW = 4096


@dataclass(frozen=True, slots=True)
class Rule:
    """An answer is kept if the score of its first `window` tokens, or of all where it has fewer, is
    at least `least`."""

    measure: str
    window: int
    least: float

    def __post_init__(self) -> None:
        check_choice("measure", self.measure, MEASURES)
        check_integer("window", self.window, 1, MAX_WINDOW)


class Doubt:
    """One answer, token by token; those behind the window are not to be added."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._sum = 0.0
        self._least = 0.0
        self.num_tokens = 0

    @property
    def score(self) -> float:
        """Of the tokens so far; of none it is 0: there is nothing to doubt."""
        if self._rule.measure == "least" or not self.num_tokens:
            return self._least
        return self._sum / self.num_tokens

    def add(self, logprob: float) -> None:
        self._sum += logprob
        self._least = min(self._least, logprob)
        self.num_tokens += 1

    def verdict(self, *, ended: bool) -> bool | None:
        """Whether the answer is kept; None: that depends on what comes. `ended`: nothing does."""
        if ended or self.num_tokens >= self._rule.window:
            return self.score >= self._rule.least
        if not self.num_tokens:
            return None
        highest = self._least if self._rule.measure == "least" else self._sum / self._rule.window
        return False if highest < self._rule.least else None


class Hearing:
    """The `n` answers to one request: the first that is not kept decides against all of them."""

    def __init__(self, rule: Rule, n: int = 1) -> None:
        self._open = {index: Doubt(rule) for index in range(n)}
        self.verdict: bool | None = None
        self.score = inf  # of the least sure answer whose verdict is known
        self.num_tokens = 0  # that were looked at

    def add(self, index: int, logprobs: Iterable[float], *, ended: bool) -> bool | None:
        """The next tokens of one answer; the verdict, if it is known now."""
        doubt = self._open.get(index)
        if doubt is None:
            return self.verdict
        found: bool | None = None
        for logprob in logprobs:
            doubt.add(logprob)
            self.num_tokens += 1
            found = doubt.verdict(ended=False)
            if found is not None:
                break
        else:
            found = doubt.verdict(ended=ended)
        if found is None:
            return self.verdict
        del self._open[index]
        self.score = min(self.score, doubt.score)
        if self.verdict is None and (not found or not self._open):
            self.verdict = found
        return self.verdict


def judged(rule: Rule, logprobs: Iterable[float]) -> Hearing:
    """A whole answer."""
    hearing = Hearing(rule)
    hearing.add(0, logprobs, ended=True)
    return hearing


def score_of(measure: str, window: int, logprobs: Iterable[float]) -> float:
    """Of a whole answer, whatever would become of it."""
    return judged(Rule(measure, window, -inf), logprobs).score
