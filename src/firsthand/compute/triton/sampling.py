"""The sampler's work on whole rows of logits: the best token, the likeliest ones, and
log-probabilities.

Owns: those three, and the memory through which the first two leave the card.
May not know: settings of a request, random numbers, what a row is for.
Read next: `../../engine/sampler.py`, the steps that they are a part of.

A row is walked from token 0 on, in blocks of one size, so its bits depend on its own logits alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl

from firsthand.compute.executor import SHORTLIST, Shortlist
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


def likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """The parts of a `Shortlist` of `count` tokens. The library takes a NaN for the largest number,
    and of equal ones any: `is_certain` tells both."""
    width = logits.shape[1]
    values, ids = torch.topk(logits, min(count + 1, width), dim=1)
    if width == count:
        values = torch.nn.functional.pad(values, (0, 1), value=float("-inf"))
    edges = torch.stack([values[:, 0], values[:, count - 1], values[:, count]], dim=1)
    ids, order = torch.sort(ids[:, :count], dim=1)
    return ids, values.gather(1, order), edges


class Picks:
    """What is picked of rows of `width` logits, on its way: one copy to pinned memory, which the
    caller waits for."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        self._count = min(SHORTLIST, width)
        shape = (num_rows, 2 * self._count + 3)
        is_cuda = device.type == "cuda"
        self._sent = torch.empty(shape, dtype=torch.int32, pin_memory=is_cuda)
        self._held = torch.empty_like(self._sent, device=device) if is_cuda else self._sent

    def best(self, logits: torch.Tensor) -> torch.Tensor:
        """See `best`."""
        found = self._held.view(-1)[: len(logits)]
        if len(logits):
            best(logits, found)
        return self._sent.view(-1)[: len(logits)].copy_(found, non_blocking=True)

    def likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        """(L, 2C + 3): see `shortlist_of`."""
        ids, values, edges = likeliest(logits, self._count)
        words = [ids.to(torch.int32), values.view(torch.int32), edges.view(torch.int32)]
        found = self._held[: len(logits)]
        torch.cat(words, dim=1, out=found)
        return self._sent[: len(logits)].copy_(found, non_blocking=True)


def shortlist_of(words: torch.Tensor) -> Shortlist:
    """Valid until the next step."""
    count = (words.shape[1] - 3) // 2
    ids, values, edges = np.split(words.numpy(), [count, 2 * count], axis=1)
    return Shortlist(ids, values.view(np.float32), edges.view(np.float32))


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
