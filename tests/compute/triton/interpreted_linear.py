"""Linear layers in every format, and rows of an embedding, against decoded weights in float64.

Owns: sizes that fill no tile, one row and many. May not know: plans.
Read next: `interpreted_attention.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firsthand.compute.triton.linear import DeviceWeight, embed, linear
from firsthand.compute.triton.weights import Staging, load_weight
from firsthand.quant.formats import Format, GroupedFormat, Weight, decode
from tests.compute.native import micro
from tests.compute.triton.device import DEVICE, FLOATS, assert_near, empty, integers, random

KINDS: dict[str, Format] = {
    **micro.FORMATS,
    "int4/128": GroupedFormat(4, 128, "float16", has_minimum=False),
    "int8/48": GroupedFormat(8, 48, "float16", has_minimum=False, zero=3),
    "int4/8": GroupedFormat(4, 8, "float16", has_minimum=True),  # no kernel takes such groups
}


def weight_of(kind: str, n: int, k: int) -> Weight:
    return micro.random_weight(np.random.default_rng(n + k), n, k, KINDS[kind])


def on_device(weight: Weight, active: torch.dtype = torch.float32) -> DeviceWeight:
    staging = Staging(torch.device(DEVICE))
    held = load_weight(micro.Source("w", weight), staging, torch.device(DEVICE), active)
    staging.finish()
    return held


@pytest.mark.parametrize("kind", KINDS)
def test_linear_is_its_formula_in_every_format(kind: str) -> None:
    """One row and 21, which is a tile of 32; 19 outputs and 104 inputs fill nothing."""
    weight = weight_of(kind, 19, 104)
    held = on_device(weight)
    wanted = torch.from_numpy(decode(weight)).double().to(DEVICE)
    bias = random(19, seed=9)
    for num_rows in (1, 21):
        x = random(num_rows, 104)
        out = empty(num_rows, 19)
        linear(x, held, out, bias)
        given = x.double()
        if held.form == "float" and held.values.dtype != torch.float32:
            given = x.to(held.values.dtype).double()  # the product is made in the weight's type
        assert_near(out, given @ wanted.T + bias.double())


@pytest.mark.parametrize("active", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["q4_1", "q6_k", "channel", "float16", "bfloat16"])
def test_half_activations_meet_codes_without_rounding_them(kind: str, active: str) -> None:
    """Products of codes are exact, so the result is off by its own rounding alone."""
    weight = weight_of(kind, 5, 70)
    held = on_device(weight, FLOATS[active])
    x = random(3, 70, dtype=FLOATS[active])
    out = empty(3, 5)
    linear(x, held, out)
    given = x if held.form != "float" else x.to(held.values.dtype)
    assert_near(out, given.double() @ torch.from_numpy(decode(weight)).double().T.to(DEVICE))


@pytest.mark.parametrize("kind", ["float32", "channel", "q4_0"])
def test_a_row_alone_has_the_bits_it_has_in_a_batch(kind: str) -> None:
    held = on_device(weight_of(kind, 9, 96))
    x = random(19, 96)
    together, few, alone = empty(19, 9), empty(5, 9), empty(1, 9)
    linear(x, held, together, steady=True)
    linear(x[3:8].contiguous(), held, few, steady=True)
    linear(x[4:5].contiguous(), held, alone, steady=True)
    assert torch.equal(few, together[3:8])
    assert torch.equal(alone[0], together[4])


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_decodes_the_rows_that_are_asked_for(kind: str) -> None:
    weight = weight_of(kind, 7, 70)
    held = on_device(weight)
    out = empty(3, 70)
    embed(integers([6, 0, 3]), held, 1.5, out)
    wanted = decode(weight)[[6, 0, 3]] * np.float32(1.5)
    assert np.allclose(out.cpu().numpy(), wanted, rtol=1e-6, atol=1e-7)


def test_formats_are_kept() -> None:
    """S88: four bits stay four, sixteen stay sixteen."""
    n, k = 8, 128
    for kind, num_bytes in [
        ("float16", 2 * n * k),
        ("bfloat16", 2 * n * k),
        ("channel", n * k + 4 * n),
        ("q4_1", n * k // 2 + 2 * 2 * n * k // 32),
        ("q8_0", n * k + 2 * n * k // 32),
    ]:
        assert on_device(weight_of(kind, n, k), torch.bfloat16).num_bytes == num_bytes, kind
    assert on_device(weight_of("float32", n, k), torch.bfloat16).values.dtype == torch.bfloat16
