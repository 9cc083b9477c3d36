"""The sampler's work on whole rows of logits: the best token, and log-probabilities.

Owns: those two kernels.
May not know: settings of a request, random numbers, what a row is for.
Read next: `../../engine/sampler.py`, the steps that they are a part of.

A row is walked from token 0 on, in blocks of one size, so its bits depend on its own logits alone.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from firsthand.compute.triton.launch import OPTIONS, kernel

BLOCK = 1024  # tokens


@kernel
def _best(logits: tl.tensor, out: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr) -> Any:
    row = tl.program_id(0).to(tl.int64)
    best = tl.full((), float("-inf"), dtype=tl.float32)
    which = tl.full((), -1, dtype=tl.int32)
    bad = tl.full((), 0, dtype=tl.int32)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * width + at, mask=at < width, other=float("-inf"))
        wrong = (x != x) | (x == float("inf"))
        bad += tl.sum(wrong.to(tl.int32), axis=0)
        x = tl.where(wrong, float("-inf"), x)
        highest = tl.max(x, axis=0)
        first = tl.min(tl.where(x == highest, at, width), axis=0)
        higher = highest > best  # of equal ones the earlier block's stays
        which = tl.where(higher, first, which)
        best = tl.where(higher, highest, best)
    tl.store(out + row, tl.where(bad > 0, -1, which))


def best(logits: torch.Tensor, out: torch.Tensor) -> None:
    """out (L,) int32: the token of the highest logit of each row (L, V), ties to the lower id; −1
    for a row with a NaN or +infinity, or with −infinity everywhere."""
    _best[(logits.shape[0],)](logits, out, logits.shape[1], BLOCK=BLOCK, **OPTIONS)


@kernel
def _log_softmax(logits: tl.tensor, out: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr) -> Any:
    row = tl.program_id(0).to(tl.int64)
    m = tl.full((), float("-inf"), dtype=tl.float32)
    total = tl.full((), 0.0, dtype=tl.float32)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * width + at, mask=at < width, other=float("-inf"))
        largest = tl.maximum(m, tl.max(x, axis=0))
        shift = tl.where(largest == float("-inf"), 0.0, largest)  # never ∞ − ∞
        total = total * tl.exp(m - shift) + tl.sum(tl.exp(x - shift), axis=0)
        m = largest
    whole = m + tl.log(total)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * width + at, mask=at < width, other=float("-inf"))
        tl.store(out + row * width + at, x - whole, mask=at < width)


def log_softmax(logits: torch.Tensor, out: torch.Tensor) -> None:
    """out (L, V) = x − log Σ exp(x) of each row; a row needs one finite logit."""
    _log_softmax[(logits.shape[0],)](logits, out, logits.shape[1], BLOCK=BLOCK, **OPTIONS)
