"""Attention three times: the formula, tiled with an online softmax, and torch's own call.

Owns: the mathematics of one sequence's attention, and the one function that makes a mask.
May not know: stores, slots, batches, weights, layers.
Read next: `ops.py`, which reads keys and values back from the store and calls one of these.
Seen in: `firsthand lab softmax-scale`, `firsthand lab mask-inverted`, `firsthand lab mask-shape`,
`firsthand lab online-softmax`.

All three are (t, H, D) = attention(q (t, H, D), k (n, G, D), v (n, G, D), positions (t,), rule):
query row r stands at positions[r], key row p at position p, and sees the keys 0 … positions[r], or
the last of them where the rule has a window.
Shapes are asserted by name at every change of form; `python -O` leaves the asserts out.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Literal, Protocol

import torch

from firsthand.compute.ops import PLAIN_ATTENTION, AttentionRule

AttentionName = Literal["formula", "tiled", "fast"]


class Attention(Protocol):
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        rule: AttentionRule = PLAIN_ATTENTION,
    ) -> torch.Tensor: ...


CHUNK = 64  # keys per tile; fixed, and counted from position 0


def causal_mask(
    query_positions: torch.Tensor, key_positions: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    """(t, n) True where the query may see the key: never a later position, nor one that is
    `window` or more before it.

    Built from positions alone, so it is right for a whole prompt, a piece of one, and one token
    after a long cache; a sequence needs no padding, so there is nothing else to hide.
    """
    distance = query_positions[:, None] - key_positions[None, :]
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def capped(scores: torch.Tensor, cap: float | None) -> torch.Tensor:
    return scores if cap is None else cap * torch.tanh(scores / cap)


def formula(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    rule: AttentionRule = PLAIN_ATTENTION,
) -> torch.Tensor:
    """softmax(q · kᵀ / sqrt(D) + mask) · v as it is printed. arXiv 1706.03762, equation 1."""
    t, num_heads, head_size = q.shape
    n = k.shape[0]
    q, k, v = by_head(q, k, v)
    scores = capped((q * rule.scale_of(head_size)) @ k.transpose(1, 2), rule.cap)
    assert has_shape(scores, H=num_heads, t=t, n=n)
    mask = causal_mask(positions, torch.arange(n, device=positions.device), rule.window)
    assert has_shape(mask, t=t, n=n)
    mixed = softmax(scores.masked_fill(~mask, -math.inf)) @ v
    assert has_shape(mixed, H=num_heads, t=t, D=head_size)
    return mixed.transpose(0, 1)


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """exp(s − max s) / Σ exp(s − max s) over the last axis.

    The shift leaves the quotient as it is and keeps every exponent at or below 0, so no score is
    too large. A row needs one finite score; a causal row has its own position.
    """
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return weights / weights.sum(dim=-1, keepdim=True)


def tiled(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    rule: AttentionRule = PLAIN_ATTENTION,
) -> torch.Tensor:
    """The same without ever holding (t, n) scores: keys come in tiles, softmax runs along.

    For each row: m is the largest score so far, l the sum of exp(score − m), o the weighted
    sum of values. When a tile raises m, what was summed under the old one is multiplied by
    exp(m_old − m_new). Until a row has met a key that it sees, m is −∞, and what was summed is 0.
    arXiv 1805.02867, algorithm 3; arXiv 2205.14135, algorithm 1.
    """
    t, num_heads, head_size = q.shape
    q, k, v = by_head(q, k, v)
    q = q * rule.scale_of(head_size)
    m = torch.full((num_heads, t, 1), -math.inf, dtype=q.dtype, device=q.device)
    total = torch.zeros_like(m)  # l
    o = torch.zeros_like(q)
    for start in range(0, k.shape[1], CHUNK):
        tile = slice(start, min(start + CHUNK, k.shape[1]))
        key_positions = torch.arange(tile.start, tile.stop, device=positions.device)
        scores = capped(q @ k[:, tile].transpose(1, 2), rule.cap)
        mask = causal_mask(positions, key_positions, rule.window)
        scores = scores.masked_fill(~mask, -math.inf)
        assert has_shape(scores, H=num_heads, t=t, tile=tile.stop - tile.start)
        m_new = torch.maximum(m, scores.amax(dim=-1, keepdim=True))
        weights = torch.exp(scores - m_new).masked_fill(~mask, 0.0)
        rescale = torch.exp(m - m_new).masked_fill(m.isneginf(), 0.0)  # never ∞ − ∞
        total = total * rescale + weights.sum(dim=-1, keepdim=True)
        o = o * rescale + weights @ v[:, tile]
        m = m_new
    assert has_shape(o, H=num_heads, t=t, D=head_size)
    return (o / total).transpose(0, 1)


def fast(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    rule: AttentionRule = PLAIN_ATTENTION,
) -> torch.Tensor:
    """The same by torch's fused call; the mask is ours. It has no cap: then the formula."""
    if rule.cap is not None:
        return formula(q, k, v, positions, rule)
    t, num_heads, head_size = q.shape
    mask = causal_mask(positions, torch.arange(k.shape[0], device=positions.device), rule.window)
    q, k, v = by_head(q, k, v)
    mixed = torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask[None, None], scale=rule.scale_of(head_size)
    )
    assert has_shape(mixed, one=1, H=num_heads, t=t, D=head_size)
    return mixed[0].transpose(0, 1)


ATTENTIONS: MappingProxyType[AttentionName, Attention] = MappingProxyType(
    {"formula": formula, "tiled": tiled, "fast": fast}
)


def by_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(H, t, D), (H, n, D), (H, n, D): head h beside its key/value head h // (H / G)."""
    t, num_heads, head_size = q.shape
    n, num_kv_heads = k.shape[0], k.shape[1]
    assert has_shape(k, n=n, G=num_kv_heads, D=head_size)
    assert has_shape(v, n=n, G=num_kv_heads, D=head_size)
    assert num_heads % num_kv_heads == 0
    group = num_heads // num_kv_heads
    q = q.transpose(0, 1)
    k = k.repeat_interleave(group, dim=1).transpose(0, 1)
    v = v.repeat_interleave(group, dim=1).transpose(0, 1)
    assert has_shape(q, H=num_heads, t=t, D=head_size)
    assert has_shape(k, H=num_heads, n=n, D=head_size)
    assert has_shape(v, H=num_heads, n=n, D=head_size)
    return q, k, v


def has_shape(x: torch.Tensor, **axes: int) -> bool:
    """True, or an AssertionError that names the axis that is wrong."""
    found = tuple(x.shape)
    wanted = tuple(axes.values())
    if found != wanted:
        raise AssertionError(f"shape {found} where ({', '.join(axes)}) = {wanted} was meant")
    return True
