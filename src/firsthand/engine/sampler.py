"""Logits become tokens.

Owns: the order of the steps below, and what a bad row or a bad id leads to.
May not know: sequences, text; how the steps are computed (`csrc/sampler.cpp` does it).
Read next: `sampler_reference.py`, the same steps written for the reader.

For each row, with nothing from any other row:

 1. NaN, +infinity, or −infinity everywhere: an error, and no token. −infinity alone masks a token.
 2. Logprobs to report: log-softmax of the raw logits. The best ones first, ties to the lower id;
    a masked token is never among them, so there can be fewer than asked for.
 3. A token that the row's mask (its grammar) does not allow becomes −infinity, and stays it. A
    mask that leaves nothing is an error, and no token. Then `logit_bias` is added.
 4. `repetition_penalty`: a logit of a token seen in prompt or output is divided by it if
    positive, multiplied if not; once, however often it was seen. arXiv 1909.05858, section 4.1.
 5. `frequency_penalty` times the token's count in the output is subtracted, then
    `presence_penalty` if that count is not 0. The prompt does not count here.
 6. A temperature below 1e-5 is greedy: the highest logit, ties to the lower id. Done.
 7. Logits are divided by `temperature`, and become probabilities.
 8. `top_k`: the k highest stay; ties to the lower id.
 9. `top_p`: of these, renormalised, the fewest highest whose probabilities reach top_p stay;
    ties to the lower id.
10. `min_p`: of these, those stay whose probability is at least min_p times the highest.
11. The draw: 64 random bits that depend on (seed, position) alone, through the inverse of the
    cumulative probabilities in the order of ids.

Steps 3 to 7 are in float64. From step 8 on a probability is a whole number, its mass: 2⁴³ for
the best token, rounded to nearest for the others. Sums of whole numbers are exact, so neither an
order of summation nor a thread can change a draw; a token less likely than the best one by more
than 2⁻⁴⁴ has mass 0 and is never drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsthand.compute.native import _native
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw

Settings = tuple[float, int, float, float, float, float, float]
MAX_PACKED = 4096  # settings kept ready; a request has one


class SampleOutcome(NamedTuple):
    """The token of one row; `token_id` is −1 when `error` is set.

    `logprob` and `top_logprobs` are float32 values of the model's own distribution, given only
    if asked for.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    error: str | None = None


class Sampled(NamedTuple):
    """The token of each row; of a row that has more to say than its token, its outcome."""

    token_ids: list[int]
    reports: Mapping[int, SampleOutcome]


class Masks(NamedTuple):
    """Which tokens may be drawn: row i of `words` (a bit per token, the lowest of a word first) is
    the mask of row `rows[i]` of the logits. The other rows have none."""

    words: NDArray[np.uint32]
    rows: list[int]


class _Packed(NamedTuple):
    sampling: SamplingParams  # held, so that no other can get its place in memory
    settings: _native.SampleSettings
    looks_back: bool


class Sampler:
    """All rows of a step in one native call, shared out to `threads`, without the interpreter lock.

    Settings are handed to C++ once and found again by the identity of their frozen value: that
    saves time, and cannot change a result. `isa` forces an instruction set; the bits are the same.
    For one thread at a time.
    """

    def __init__(self, threads: _native.Threads | None = None, isa: str = "") -> None:
        self._threads = threads
        self._isa = isa
        self._memory = _native.SampleMemory()
        self._packed: dict[int, _Packed] = {}

    def __call__(
        self, logits: NDArray[np.float32], draws: Sequence[Draw], masks: Masks | None = None
    ) -> Sampled:
        """The tokens of logits (L, V), 1 ≤ V ≤ 2²⁰, in order; `draws` has L entries, a mask ⌈V/32⌉
        words.

        A row with bad logits or bad ids gets an `error`; the others are as if it were not there.
        Raises ValueError if the shapes do not fit: that is the caller's fault, not a request's.
        """
        if logits.ndim != 2 or logits.shape[0] != len(draws):
            raise ValueError(f"logits of shape {logits.shape} do not fit {len(draws)} draws")
        packed = [self._packed.get(id(draw.sampling)) or self._pack(draw) for draw in draws]
        token_ids = np.empty(len(draws), dtype=np.int32)
        reports = _native.sample_rows(
            np.ascontiguousarray(logits, dtype=np.float32),
            [one.settings for one in packed],
            [draw.seed for draw in draws],
            [draw.position for draw in draws],
            {
                row: (draws[row].history, draws[row].num_prompt_tokens)
                for row, one in enumerate(packed)
                if one.looks_back
            },
            token_ids,
            self._memory,
            self._threads,
            self._isa,
            *(masks or ()),
        )
        chosen: list[int] = token_ids.tolist()
        return Sampled(
            chosen, {row: SampleOutcome(chosen[row], *more) for row, more in reports.items()}
        )

    def _pack(self, draw: Draw) -> _Packed:
        sampling = draw.sampling
        if len(self._packed) >= MAX_PACKED:
            self._packed.clear()
        num_logprobs = -1 if sampling.logprobs is None else sampling.logprobs
        packed = self._packed[id(sampling)] = _Packed(
            sampling,
            _native.SampleSettings(settings(sampling), sampling.logit_bias, num_logprobs),
            sampling.needs_history,
        )
        return packed


def settings(sampling: SamplingParams) -> Settings:
    """The numbers of `sampling` in the order in which the native functions take them."""
    return (
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )
