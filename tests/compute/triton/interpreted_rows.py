"""Norm, rope, activation, and the sampler's rows against their formulas.

Owns: odd sizes, one row and many. May not know: plans. Read next: `interpreted_linear.py`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from firsthand.compute.executor import Shortlist
from firsthand.compute.torch import formulas
from firsthand.compute.triton import rows, sampling
from tests.compute.triton.device import (
    DEVICE,
    FLOATS,
    assert_near,
    empty,
    integers,
    random,
)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("num_rows", "width", "heads"), [(1, 1, 1), (3, 37, 1), (5, 24, 3)])
def test_norm_is_its_formula(dtype: str, num_rows: int, width: int, heads: int) -> None:
    x = random(num_rows, width * heads, dtype=FLOATS[dtype])
    gain = random(width, seed=1)
    out = empty(*x.shape, dtype=FLOATS[dtype])
    rows.norm(x, gain, 1e-5, out)
    assert_near(out, formulas.norm(x.double(), gain.double(), 1e-5, heads))


def test_norm_adds_the_residual_and_keeps_the_sum() -> None:
    x, y, gain = random(4, 33), random(4, 33, seed=1, dtype=torch.bfloat16), random(33, seed=2)
    total, out = empty(4, 33), empty(4, 33, dtype=torch.bfloat16)
    rows.norm(x, gain, 1e-6, out, residual=y, total=total)
    assert torch.equal(total, x + y.float())
    assert_near(out, formulas.norm(total.double(), gain.double(), 1e-6))


def test_a_row_of_a_norm_is_the_row_alone() -> None:
    x, gain = random(7, 50), random(50, seed=1)
    together, alone = empty(7, 50), empty(1, 50)
    rows.norm(x, gain, 1e-5, together)
    for row in range(7):
        rows.norm(x[row : row + 1].contiguous(), gain, 1e-5, alone)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize(("heads", "head_size"), [(1, 2), (3, 10), (4, 16)])
def test_rope_is_its_formula(heads: int, head_size: int) -> None:
    angles = random(9, head_size // 2, seed=3)
    cos, sin = torch.cos(angles), torch.sin(angles)
    positions = integers([8, 0, 3])
    x = random(3, heads * head_size)
    out = empty(3, heads * head_size)
    rows.rope(x, cos, sin, positions, out)
    turned = (cos[positions.long()][:, None], sin[positions.long()][:, None])
    wanted = formulas.rope(x.unflatten(1, (heads, head_size)), *turned)
    assert_near(out, wanted)
    rows.rope(x, cos, sin, positions, x)
    assert torch.equal(x, out)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("shape", [(1, 3), (3, 700)])
def test_activation_is_its_formula(kind: str, shape: tuple[int, int]) -> None:
    gate, up = 4 * random(*shape), random(*shape, seed=1)
    out = empty(*shape)
    rows.activation(gate, up, kind, out)
    assert_near(out, formulas.activation(gate.double(), up.double(), kind))


def test_the_best_token_is_the_lowest_of_equal_ones() -> None:
    logits = random(6, 2500)
    logits[0, 17] = logits[0, 2400] = 50.0
    logits[1, 2499] = 50.0
    logits[2] = -math.inf
    logits[3, 9] = math.nan
    logits[4, 2100] = math.inf
    logits[5] = -math.inf
    logits[5, 1999] = -3.0
    out = empty(6, dtype=torch.int32)
    sampling.best(logits, out)
    assert out.tolist() == [17, 2499, -1, -1, -1, 1999]


def test_the_likeliest_tokens_come_in_the_order_of_ids() -> None:
    logits = random(6, 2500)
    logits[1] = logits[1].round(decimals=1)  # equal ones at the border
    logits[2, 9] = math.nan
    logits[3, 2100] = math.inf
    logits[4, 200:] = -math.inf  # what is masked is no rival
    logits[5] = -math.inf
    picks = sampling.Picks(7, 2500, logits.device)
    found = sampling.shortlist_of(picks.likeliest(logits))
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    wanted = logits[0].cpu().numpy()
    assert found.ids.shape == (6, 256)
    assert np.array_equal(found.ids[0], np.sort(np.argsort(-wanted)[:256]))
    assert np.array_equal(found.logits[0], wanted[found.ids[0]])
    assert np.array_equal(found.edges[0], -np.sort(-wanted)[[0, 255, 256]])
    assert np.array_equal(found.ids[4, :200], np.arange(200))
    rows_of = zip(*(np.split(part, 6) for part in found), strict=True)
    certain = [Shortlist(*parts).is_certain for parts in rows_of]
    assert certain == [True, False, False, False, True, False]


@pytest.mark.parametrize("width", [1, 61, 1024, 2500])
def test_log_softmax_is_its_formula(width: int) -> None:
    logits = 10 * random(2, width)
    out = empty(2, width)
    sampling.log_softmax(logits, out)
    wanted = torch.log_softmax(logits.double(), dim=-1)
    assert float((out - wanted).abs().max()) < 2e-5
    alone = empty(1, width)
    sampling.log_softmax(logits[1:].contiguous(), alone)
    assert torch.equal(alone[0], out[1])
    assert out.device.type == DEVICE
