"""Rotary frequencies: how fast each pair of dimensions turns, and how long contexts slow it.

Owns: the formula of every scaling, over plain numbers.
May not know: files and their keys (that is `scaling.py`), tensors. Standard library only.
Read next: `scaling.py`, which reads the numbers; `compute/ops.py: rope`, which turns by them.

Pair i of a head of size D turns by position · f[i], with f[i] = theta^(−2i / D) when nothing is
scaled (arXiv 2104.09864, equation 15). Every function gives the D / 2 frequencies; `yarn` and
`longrope` have an attention factor beside them, which multiplies cos and sin. Where a scaling
depends on a length, it is the configured context and never the current one: a key that was
rotated early must stay right when the sequence has grown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from firsthand.values import dataclass

Frequencies = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding in its used form.

    `inverse_frequencies` (D/2 of them, already scaled for the configured context) and
    `attention_factor` multiply as cos(position · f) · attention_factor. Rotation pairs dimension
    i with i + D/2 (the layout of Hugging Face checkpoints; GGUF's interleaved rows are permuted
    into it at load).
    """

    kind: str
    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0


def default(theta: float, head_size: int) -> Frequencies:
    """No scaling. arXiv 2104.09864, section 3.4.2."""
    return tuple(float(theta) ** (-2 * i / head_size) for i in range(head_size // 2))


def divided(frequencies: Frequencies, factors: Sequence[float]) -> Frequencies:
    """Each frequency by a factor of its own: GGUF's `rope_freqs.weight`, LongRoPE's tables."""
    return tuple(f / factor for f, factor in zip(frequencies, factors, strict=True))


def linear(theta: float, head_size: int, factor: float) -> Frequencies:
    """Position interpolation: every position is divided by the factor. arXiv 2306.15595, eq. 4."""
    return tuple(f / factor for f in default(theta, head_size))


def dynamic(
    theta: float, head_size: int, factor: float, trained_context: int, context: int
) -> Frequencies:
    """NTK-aware: a larger base, so that the slowest pair is interpolated and the fastest is not.

    base = theta · (factor · context / trained − (factor − 1))^(D / (D − 2)).
    arXiv 2309.00071, section 3.3 and appendix A.1, with the configured context as its length.
    """
    stretch = factor * max(context, trained_context) / trained_context - (factor - 1)
    return default(theta * stretch ** (head_size / (head_size - 2)), head_size)


def llama3(
    theta: float,
    head_size: int,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_context: int,
) -> Frequencies:
    """Short waves stay, long ones are divided by the factor, those between are blended.

    A pair makes r = original_context · f / 2π turns over the trained context. r above
    `high_freq_factor` is short, below `low_freq_factor` long. Source: Meta's Llama 3.1 release,
    `models/llama3/model.py`.
    """
    scaled = []
    for f in default(theta, head_size):
        turns = original_context * f / (2 * math.pi)
        kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        kept = min(max(kept, 0.0), 1.0)
        scaled.append((1 - kept) * f / factor + kept * f)
    return tuple(scaled)


def yarn(
    theta: float,
    head_size: int,
    factor: float,
    original_context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Frequencies:
    """A ramp over the pairs: those with more than `beta_fast` turns over the trained context
    stay, those with fewer than `beta_slow` are interpolated. arXiv 2309.00071, section 3.2.

    The ramp runs over the pair's index, between the indices at which the two counts are met,
    rounded outwards when `truncate` is set.
    """
    low = _pair_with_turns(beta_fast, theta, head_size, original_context)
    high = _pair_with_turns(beta_slow, theta, head_size, original_context)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    width = high - low if high != low else 0.001  # a step, where the ramp has no width
    scaled = []
    for i, f in enumerate(default(theta, head_size)):
        interpolated = min(max((i - low) / width, 0.0), 1.0)
        scaled.append(interpolated * f / factor + (1 - interpolated) * f)
    return tuple(scaled)


def _pair_with_turns(turns: float, theta: float, head_size: int, context: int) -> float:
    """The (fractional) pair that turns so often over the context: the inverse of `default`."""
    return head_size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))


def yarn_attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """0.1 · ln(factor) + 1 (arXiv 2309.00071, equation 15 and section 3.4); with both `mscale`s
    the quotient of two such terms (DeepSeek-V2, arXiv 2405.04434, section 3.1.4)."""
    if mscale and mscale_all_dim:
        return _temperature(factor, mscale) / _temperature(factor, mscale_all_dim)
    return _temperature(factor, 1.0)


def _temperature(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope(
    theta: float,
    head_size: int,
    short_factors: Sequence[float],
    long_factors: Sequence[float],
    original_context: int,
    context: int,
) -> Frequencies:
    """A searched factor for each pair; the long table when the configured context exceeds the
    trained one. arXiv 2402.13753, section 3.2."""
    factors = long_factors if context > original_context else short_factors
    return divided(default(theta, head_size), factors)


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """sqrt(1 + ln(factor) / ln(original context)). arXiv 2402.13753, via Phi-3's release."""
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))
