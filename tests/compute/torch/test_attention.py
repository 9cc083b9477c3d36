"""The three attentions on their own: tile edges, extremes, groups, masks and named shapes.

Owns: what `attention.py` promises. May not know: models, stores.
Read next: `test_lessons.py`, where each promise is broken on purpose.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from firsthand.compute.torch.attention import (
    ATTENTIONS,
    CHUNK,
    Attention,
    by_head,
    causal_mask,
    has_shape,
    softmax,
)

pytestmark = pytest.mark.torch


def numbers(*shape: int, seed: int = 0, size: float = 1.0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(shape, generator=generator)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("n", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7])
@pytest.mark.parametrize("t", [1, 3])
def test_every_way_gives_the_formula_at_tile_edges(attention: Attention, n: int, t: int) -> None:
    t = min(t, n)
    q, k, v = numbers(t, 6, 8), numbers(n, 2, 8, seed=1), numbers(n, 2, 8, seed=2)
    positions = torch.arange(n - t, n)
    found = attention(q, k, v, positions)
    exact = ATTENTIONS["formula"](q.double(), k.double(), v.double(), positions)
    assert found.shape == (t, 6, 8)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("size", [1e-20, 1e4, 1e9])
def test_s22_extreme_scores_stay_finite(attention: Attention, size: float) -> None:
    q, k = numbers(70, 3, 4, size=size), numbers(70, 1, 4, seed=1, size=size)
    v = numbers(70, 1, 4, seed=2)
    found = attention(q, k, v, torch.arange(70))
    assert torch.isfinite(found).all()
    assert found.abs().max() <= v.abs().max() * 1.001  # a mean lies among what it is a mean of


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
def test_the_largest_score_may_come_in_any_tile(attention: Attention) -> None:
    """One key outshines all others: the answer is its value, wherever it stands."""
    n = 3 * CHUNK
    v = numbers(n, 1, 4)
    for place in (0, CHUNK - 1, CHUNK, n - 1):
        k = torch.zeros(n, 1, 4)
        k[place] = 100.0
        found = attention(torch.full((1, 1, 4), 10.0), k, v, torch.tensor([n - 1]))
        torch.testing.assert_close(found[0, 0], v[place, 0])


def test_softmax_is_a_distribution_whatever_the_scores() -> None:
    scores = torch.tensor([[1e4, -1e4, 0.0], [-math.inf, 3e38, 3e38], [-3e38, -3e38, -math.inf]])
    found = softmax(scores)
    torch.testing.assert_close(found.sum(-1), torch.ones(3))
    torch.testing.assert_close(found[1:], torch.tensor([[0.0, 0.5, 0.5], [0.5, 0.5, 0.0]]))


def test_s27_the_mask_is_made_from_positions() -> None:
    keys = torch.arange(5)
    assert causal_mask(torch.tensor([0, 1, 2, 3, 4]), keys).equal(torch.ones(5, 5).tril().bool())
    assert causal_mask(torch.tensor([4]), keys).equal(torch.ones(1, 5).bool())
    assert causal_mask(torch.tensor([2, 3]), keys).int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
    ]


def test_model_5_head_h_reads_key_value_head_h_over_group() -> None:
    k = torch.tensor([0.0, 1.0]).reshape(1, 2, 1)
    _, repeated, _ = by_head(torch.zeros(1, 6, 1), k, k)
    assert repeated.flatten().tolist() == [0, 0, 0, 1, 1, 1]


def test_s21_a_wrong_shape_is_named() -> None:
    assert has_shape(torch.zeros(2, 3), T=2, D=3)
    with pytest.raises(AssertionError, match=r"\(T, D\) = \(3, 2\)"):
        has_shape(torch.zeros(2, 3), T=3, D=2)
    with pytest.raises(AssertionError, match="n, G, D"):
        by_head(torch.zeros(1, 2, 4), torch.zeros(5, 2, 4), torch.zeros(4, 2, 4))
    with pytest.raises(AssertionError):
        by_head(torch.zeros(1, 5, 4), torch.zeros(5, 2, 4), torch.zeros(5, 2, 4))
