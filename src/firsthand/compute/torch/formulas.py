"""The operators that know nothing but their rows, each the formula of `compute/ops.py`.

Owns: norm, linear, rope and activation over tensors.
May not know: batches, stores, how weights are named.
Read next: `ops.py` (the vocabulary over one batch), `compiled.py` (the same formulas as a graph).

A row's result depends on no other row. So rows may be added below, and do nothing.
"""

from __future__ import annotations

import torch


def norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    mean_square = (x * x).mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(mean_square + eps) * gain


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = x @ weight.T
    return y if bias is None else y + bias


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
