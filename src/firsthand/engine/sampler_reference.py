"""The sampler's formulas, written to be read: numpy float64 and Python integers.

Owns: what `sampler.py` promises, step by step, down to the last bit.
May not know: the native code, speed.
Read next: `compute/native/csrc/sampler.cpp`, which gives the same bits without a full sort.

Nothing serves requests from here; the tests compare the native sampler with it, with `==`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw

Floats = NDArray[np.float64]
Row = tuple[int, float | None, tuple[tuple[int, float], ...], str | None]

GREEDY_BELOW = 1e-5
UNIT_MASS = 2**43
NUM_LANES = 16

LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # ends in zero bits: k · LN2_HIGH is exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
LOG2_E = float.fromhex("0x1.71547652b82fep0")
SQRT_2 = float.fromhex("0x1.6a09e667f3bcdp0")
EXP_FLOOR = -700.0


def sample_row(
    logits: NDArray[np.float32], draw: Draw, allowed: NDArray[np.bool_] | None = None
) -> Row:
    """(token id, logprob, top logprobs, error) for one row (V,), with its mask if it has one."""
    raw, sampling = logits.astype(np.float64), draw.sampling
    error = bad_ids(draw, len(raw)) or bad_logits(raw)
    if error is not None:
        return -1, None, (), error
    masked = raw if allowed is None else np.where(allowed, raw, -math.inf)
    if masked.max() == -math.inf:
        return -1, None, (), "the mask leaves no token"
    final = adjusted(masked, draw)
    error = bad_logits(final)
    if error is not None:
        return -1, None, (), f"after penalties: {error}"
    if sampling.temperature < GREEDY_BELOW:
        token_id = int(np.argmax(final))  # the first of equals
    else:
        token_id = drawn(masses(final, sampling), random_bits(draw.seed, draw.position))
    if sampling.logprobs is None:
        return token_id, None, (), None
    logprobs = log_softmax(raw)
    best = [i for i in ranked(raw)[: sampling.logprobs] if raw[i] > -math.inf]
    top = tuple((i, float(logprobs[i])) for i in best)
    return token_id, float(logprobs[token_id]), top, None


def bad_ids(draw: Draw, vocab_size: int) -> str | None:
    """Ids that the row does not have are never used as an index."""
    history = draw.history if draw.sampling.needs_history else ()
    given = [("logit_bias", i) for i, _ in draw.sampling.logit_bias]
    for where, token_id in given + [("history", i) for i in history]:
        if not 0 <= token_id < vocab_size:
            return f"{where} holds token {token_id}, outside the model's vocabulary of {vocab_size}"
    if draw.sampling.needs_history and not 0 <= draw.num_prompt_tokens <= len(history):
        return "num_prompt_tokens is outside the history"
    return None


def bad_logits(logits: Floats) -> str | None:
    if np.isnan(logits).any():
        return "logits hold NaN"
    if logits.max() == math.inf:
        return "logits hold +infinity"
    return "every logit is -infinity" if logits.max() == -math.inf else None


def ranked(logits: Floats) -> list[int]:
    """Ids from the highest logit to the lowest; of equals, the lower id first."""
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def adjusted(raw: Floats, draw: Draw) -> Floats:
    """Bias, then repetition (prompt and output), then frequency and presence (output)."""
    sampling, logits = draw.sampling, raw.copy()
    for token_id, bias in sampling.logit_bias:
        logits[token_id] += bias
    if not sampling.needs_history:
        return logits
    output = draw.history[draw.num_prompt_tokens :]
    with np.errstate(over="ignore"):
        for token_id in set(draw.history):
            x = logits[token_id]
            penalty = sampling.repetition_penalty
            x = x / penalty if x > 0 else x * penalty
            if token_id in output:
                x -= sampling.frequency_penalty * output.count(token_id)
                x -= sampling.presence_penalty
            logits[token_id] = x
    return logits


def masses(logits: Floats, sampling: SamplingParams) -> list[int]:
    """Each token's probability as a whole number; 0 for those that a filter dropped."""
    weights = exp((logits - logits.max()) / sampling.temperature)
    mass = [int(x) for x in np.rint(weights * UNIT_MASS)]
    order = [i for i in ranked(logits) if mass[i] > 0]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.top_p < 1.0:
        total = sum(mass[i] for i in order)
        order = shortest(order, mass, min(max(math.ceil(sampling.top_p * total), 1), total))
    kept = {i for i in order if mass[i] >= sampling.min_p * UNIT_MASS}
    return [m if i in kept else 0 for i, m in enumerate(mass)]


def shortest(order: list[int], mass: list[int], needed: int) -> list[int]:
    """The shortest beginning of `order` whose masses reach `needed`."""
    reached = 0
    for count, token_id in enumerate(order, start=1):
        reached += mass[token_id]
        if reached >= needed:
            return order[:count]
    return order


def drawn(mass: list[int], bits: int) -> int:
    """Inverse of the cumulative masses in the order of ids, at bits / 2⁶⁴ of their sum."""
    target = bits * sum(mass) >> 64
    passed = 0
    for token_id, m in enumerate(mass):
        passed += m
        if passed > target:
            return token_id
    raise AssertionError("unreachable: the target is below the sum")


def log_softmax(raw: Floats) -> NDArray[np.float32]:
    """logit − max − log Σ exp(logit − max), rounded to float32 once; −infinity if masked only.

    The sum runs over 16 lanes (lane = id mod 16) in the order of ids, then over a fixed tree.
    """
    shifted = raw - raw.max()
    padding = np.zeros(-len(raw) % NUM_LANES)
    lanes = np.zeros(NUM_LANES)
    for group in np.concatenate([exp(shifted), padding]).reshape(-1, NUM_LANES):
        lanes = lanes + group
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    logprobs = shifted - log(float(lanes[0]))
    lowest = np.where(raw > -math.inf, float(np.finfo(np.float32).min), -math.inf)
    rounded: NDArray[np.float32] = np.maximum(logprobs, lowest).astype(np.float32)
    return rounded


def exp(x: Floats) -> Floats:
    """e^x for x ≤ 0, within 2 ulp; below −700 that of −700, which is nothing beside 1.

    x = k · ln 2 + r with |r| ≤ ln 2 / 2; e^x = 2^k · e^r; e^r by its Taylor series to r¹³.
    """
    clamped = np.maximum(x, EXP_FLOOR)
    k = np.rint(clamped * LOG2_E)
    r = (clamped - k * LN2_HIGH) - k * LN2_LOW
    series = np.full_like(r, 1.0 / math.factorial(13))
    for n in range(12, -1, -1):
        series = series * r + 1.0 / math.factorial(n)
    return np.ldexp(series, k.astype(np.int64))


def log(x: float) -> float:
    """The natural log of a normal x > 0, within 2 ulp.

    x = 2^e · m with m in [√½, √2); log m = 2 · artanh(f), f = (m − 1) / (m + 1).
    """
    half, exponent = math.frexp(x)
    m, e = (2 * half, exponent - 1) if 2 * half < SQRT_2 else (half, exponent)
    f = (m - 1) / (m + 1)
    series = 0.0
    for odd in range(23, 1, -2):
        series = (series + 1 / odd) * (f * f)
    return e * LN2_HIGH + (2 * f + (2 * f * series + e * LN2_LOW))


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11."""
    low = 2**32 - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & low, (a >> 32) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c0, c1, c2, c3


def random_bits(seed: int, position: int) -> int:
    """64 bits from (seed, position) alone. The counter's third word names the use: 0, a token."""
    low = 2**32 - 1
    words = philox4x32((position & low, position >> 32, 0, 0), (seed & low, seed >> 32))
    return words[0] | words[1] << 32
