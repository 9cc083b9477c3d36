"""The operators that know nothing but their rows, each the formula of `compute/ops.py`.

Owns: norm, linear, rope, activation, route and experts over tensors.
May not know: batches, stores, how weights are named.
Read next: `ops.py` (the vocabulary over one batch), `compiled.py` (the same formulas as a graph).

A row's result depends on no other row. So rows may be added below, and do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from firsthand.compute.ops import RoutingRule

# For which rows of a batch, and a and b.
LowRankOf = tuple[slice, torch.Tensor, torch.Tensor]


def norm(x: torch.Tensor, gain: torch.Tensor, eps: float, num_heads: int = 1) -> torch.Tensor:
    heads = x.unflatten(1, (num_heads, -1))
    mean_square = (heads * heads).mean(dim=-1, keepdim=True)
    return (heads * torch.rsqrt(mean_square + eps) * gain).flatten(1)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = x @ weight.T
    return y if bias is None else y + bias


def among(
    factors: Sequence[LowRankOf], rows: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The same for a choice of rows: which of them each pair is for."""
    return [((rows >= of.start) & (rows < of.stop), a, b) for of, a, b in factors]


def with_low_rank(
    y: torch.Tensor,
    x: torch.Tensor,
    factors: Sequence[tuple[slice | torch.Tensor, torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """y + x · aᵀ · bᵀ over the rows that each pair of factors is for; others stay as they are."""
    if not factors:
        return y
    y = y.clone()
    for rows, a, b in factors:
        y[rows] += (x[rows] @ a.T) @ b.T
    return y


def rope(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """(T, heads · D) of (T, heads, D); cos and sin are (T, 1, D/2)."""
    first, second = heads.chunk(2, dim=-1)  # pairs are (i, i + D/2)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.flatten(1)


def activation(gate: torch.Tensor, up: torch.Tensor, kind: str) -> torch.Tensor:
    match kind:
        case "silu":
            return gate * torch.sigmoid(gate) * up
        case "gelu_tanh":
            inner = (2.0 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
            return 0.5 * gate * (1.0 + torch.tanh(inner)) * up
    raise ValueError(f"activation {kind!r}")


def route(logits: torch.Tensor, rule: RoutingRule, shared: torch.Tensor | None) -> torch.Tensor:
    """(T, E), or (T, E + 1) with a shared expert."""
    weights = torch.softmax(logits, dim=-1)
    chosen = torch.sort(weights, dim=-1, descending=True, stable=True).indices[:, : rule.top_k]
    weights = torch.zeros_like(weights).scatter(1, chosen, weights.gather(1, chosen))
    if rule.renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights if shared is None else torch.cat((weights, torch.sigmoid(shared)), dim=1)


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    matrices: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    kind: str,
    factors: Sequence[Sequence[Sequence[LowRankOf]]],
) -> torch.Tensor:
    """Each expert over the rows that chose it; `matrices` are gate, up and down of each, `factors`
    what adapters add to each of them."""
    out = torch.zeros_like(x)
    for e, (gate, up, down) in enumerate(matrices):
        rows = weights[:, e].nonzero()[:, 0]
        if len(rows):
            chosen = x[rows]
            of = [among(one, rows) for one in factors[e]]
            h = activation(
                with_low_rank(chosen @ gate.T, chosen, of[0]),
                with_low_rank(chosen @ up.T, chosen, of[1]),
                kind,
            )
            out[rows] += weights[rows, e, None] * with_low_rank(h @ down.T, h, of[2])
    return out
