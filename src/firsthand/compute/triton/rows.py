"""Kernels over rows alone: norm with a residual, rope, activation, and rows of an embedding.

Owns: those four, each with its formula.
May not know: batches, stores, plans.
Read next: `linear.py`; `../torch/formulas.py`, the same formulas in torch.

A row's result depends on no other row. A sum over a row is one tree, whose shape depends on the
row's width alone. Values come in any float type and are float32 in between.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from firsthand.compute.triton.launch import OPTIONS, kernel, power_of_two

ELEMENTS = 1024  # of one program, where elements stand alone


@kernel
def tanh(x: tl.tensor) -> Any:
    """(1 − e) / (1 + e) with e = exp(−2|x|), and the sign of x: nothing overflows."""
    e = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -size, size)


@kernel
def _norm(
    x: tl.tensor,
    residual: tl.tensor,
    gain: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
) -> Any:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * width + at, values, mask=inside)
    mean_square = tl.sum(values * values, axis=0) / width
    gains = tl.load(gain + at, mask=inside, other=0.0)
    tl.store(out + row * width + at, values * tl.rsqrt(mean_square + eps) * gains, mask=inside)


def norm(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
) -> None:
    """out = s · gain / sqrt(mean(s²) + eps) with s = x, or x + residual, which goes into `total`.

    All (T, heads · D), contiguous; gain (D,) is for every head.
    """
    width = gain.shape[0]
    rows = x.numel() // width
    given = (x, x) if residual is None else (residual, total)
    _norm[(rows,)](
        x,
        given[0],
        gain,
        given[1],
        out,
        eps,
        width,
        BLOCK=power_of_two(width),
        HAS_RESIDUAL=residual is not None,
        **OPTIONS,
    )


@kernel
def rotated(
    x: tl.tensor, cos: tl.tensor, sin: tl.tensor, position: tl.tensor, heads: tl.tensor,
    half: tl.tensor, HEADS: tl.constexpr, HALF: tl.constexpr,
) -> Any:  # fmt: skip
    """Both halves of a row's heads, turned by its position."""
    head = tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (pair < half)
    first = tl.load(x + head * 2 * half + pair, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + head * 2 * half + half + pair, mask=inside, other=0.0).to(tl.float32)
    angle = position * half + pair
    c = tl.load(cos + angle, mask=pair < half, other=0.0)
    s = tl.load(sin + angle, mask=pair < half, other=0.0)
    return first * c - second * s, second * c + first * s


@kernel
def _rope(
    x: tl.tensor, out: tl.tensor, cos: tl.tensor, sin: tl.tensor, positions: tl.tensor,
    heads: tl.tensor, half: tl.tensor, HEADS: tl.constexpr, HALF: tl.constexpr,
) -> Any:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = tl.maximum(tl.load(positions + row), 0).to(tl.int64)  # −1: a row of padding
    start = row * heads * 2 * half
    first, second = rotated(x + start, cos, sin, position, heads, half, HEADS, HALF)
    head = tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (pair < half)
    tl.store(out + start + head * 2 * half + pair, first, mask=inside)
    tl.store(out + start + head * 2 * half + half + pair, second, mask=inside)


def rope(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Pairs (i, i + D/2) of each head turned by position · frequency[i]; x and out are
    (T, heads · D) and may be the same; cos and sin (positions, D/2), positions (T,)."""
    half = cos.shape[1]
    heads = x.shape[1] // (2 * half)
    sizes = {"HEADS": power_of_two(heads), "HALF": power_of_two(half)}
    _rope[(x.shape[0],)](x, out, cos, sin, positions, heads, half, **sizes, **OPTIONS)


@kernel
def _activation(
    gate: tl.tensor,
    up: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    if KIND == "silu":
        e = tl.exp(-tl.abs(g))
        y = g * tl.where(g < 0.0, e, 1.0) / (1.0 + e) * u
    else:
        inner = 0.7978845608028654 * (g + 0.044715 * g * g * g)
        y = 0.5 * g * (1.0 + tanh(inner)) * u
    tl.store(out + at, y, mask=inside)


def activation(gate: torch.Tensor, up: torch.Tensor, kind: str, out: torch.Tensor) -> None:
    """out = act(gate) · up, elementwise; kind is `silu` (x · sigmoid(x)) or `gelu_tanh`."""
    if kind not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation {kind!r}")
    grid = (triton.cdiv(gate.numel(), ELEMENTS),)
    _activation[grid](gate, up, out, gate.numel(), KIND=kind, BLOCK=ELEMENTS, **OPTIONS)
