"""How far a model's predictions are from those of another, token by token.

Owns: the Kullback-Leibler divergence over the vocabulary, and how often the likeliest token agrees.
May not know: files, terminals, which of the two was quantised.
Read next: `perplexity.py` (windows and logits).

KL(p ‖ q) = Σ p · (ln p − ln q), p by the reference, q by the candidate, in nats, float64. It sees
what an average of scores hides: two models may be as surprised by a text on the whole, and by other
words. The 99.9th percentile is where answers go wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from firsthand.errors import EngineError, InvalidRequest
from firsthand.evaluate.perplexity import DEFAULT_WINDOW, Method, WindowDone, cut, logits_of
from firsthand.generation.loading import LoadedModel
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Divergence:
    """One entry of each per scored token: the divergence, the scores by both, and whether the
    likeliest tokens are the same (of equal logits the lower id)."""

    divergences: tuple[float, ...]
    reference_nlls: tuple[float, ...]
    candidate_nlls: tuple[float, ...]
    same_top: tuple[bool, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.divergences)

    @property
    def mean(self) -> float:
        return math.fsum(self.divergences) / len(self.divergences)

    @property
    def standard_error(self) -> float:
        spread = float(np.std(self.divergences, ddof=1)) if self.num_tokens > 1 else 0.0
        return spread / math.sqrt(self.num_tokens)

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.divergences, share))

    @property
    def same_top_share(self) -> float:
        return sum(self.same_top) / len(self.same_top)

    @property
    def reference_perplexity(self) -> float:
        return math.exp(math.fsum(self.reference_nlls) / self.num_tokens)

    @property
    def candidate_perplexity(self) -> float:
        return math.exp(math.fsum(self.candidate_nlls) / self.num_tokens)

    @property
    def perplexity_change(self) -> float:
        """In percent."""
        return 100 * (self.candidate_perplexity / self.reference_perplexity - 1)


def divergence(
    reference: LoadedModel,
    candidate: LoadedModel,
    text: str,
    *,
    window: int = DEFAULT_WINDOW,
    max_windows: int | None = None,
    stride: int | None = None,
    method: Method = "windows",
    progress: WindowDone | None = None,
) -> Divergence:
    """Both read the same windows, in turns. Raises as `perplexity`, and InvalidRequest where the
    two do not cut the text into the same tokens."""
    parts = cut(reference, text, window, max_windows, stride, method)
    if parts != cut(candidate, text, window, max_windows, stride, method):
        raise InvalidRequest("reference", "cuts the text into other tokens than the model does")
    found: list[tuple[float, float, float, bool]] = []
    claims = [reference.claim(), candidate.claim()]
    try:
        for count, part in enumerate(parts, 1):
            found += _of(reference, candidate, part.token_ids)[part.first - 1 :]
            if progress is not None:
                progress(count, len(parts), math.fsum(row[2] for row in found) / len(found))
    finally:
        for claim in claims:
            claim.release()
    divergences, ours, theirs, same = zip(*found, strict=True)
    return Divergence(divergences, ours, theirs, same)


def _of(
    reference: LoadedModel, candidate: LoadedModel, token_ids: Sequence[int]
) -> list[tuple[float, float, float, bool]]:
    found = []
    pairs = zip(
        logits_of(reference.executor, reference.store, token_ids, reference.max_logit_rows),
        logits_of(candidate.executor, candidate.store, token_ids, candidate.max_logit_rows),
        strict=True,
    )
    for (one, target), (other, _) in pairs:
        if one.shape != other.shape:
            raise InvalidRequest("reference", f"has {one.size} logits, the model {other.size}")
        p, q = _logprobs(one), _logprobs(other)
        away = float(np.exp(p) @ (p - q))
        found.append(
            (max(away, 0.0), -float(p[target]), -float(q[target]), one.argmax() == other.argmax())
        )
    return found


def _logprobs(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    if not np.isfinite(wide).all():
        raise EngineError("a logit is masked or not finite")
    return wide
