"""The native sampler against the reference, with `==`; the reference's exp and log against math.

Owns: the equality of the two, on hand-picked numbers, ties and whole rows.
May not know: scheduling, models.
Read next: `test_sampler.py`, the steps against known numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from firsthand.compute.native import _native
from firsthand.engine import sampler_reference
from firsthand.engine.sampler import Masks, SampleOutcome, Sampler, settings
from firsthand.request import SamplingParams
from firsthand.scheduling.plan import Draw

pytestmark = pytest.mark.native

Row = NDArray[np.float32]
INF = math.inf


def sample(logits: Row, draws: Sequence[Draw], **how: Any) -> list[SampleOutcome]:
    sampled = Sampler(**how)(logits, draws)
    rows = enumerate(sampled.token_ids)
    return [sampled.reports.get(row) or SampleOutcome(token_id) for row, token_id in rows]


def masses(logits: Row, sampling: SamplingParams) -> list[int]:
    return _native.row_masses(logits, settings(sampling), sampling.logit_bias, (), 0)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 30.0, -30.0, 1e-40, 2e-40, 3e38, -3e38, -INF, -INF]
LOGIT = st.sampled_from(SPECIAL) | st.floats(-40, 40, width=32)
RATIO = st.sampled_from([0.1, 0.25, 0.5, 0.9, 0.999, 0.999999]) | st.floats(0.001, 1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Row, Draw]:
    size = draw(st.integers(1, 50))
    logits = draw(st.lists(LOGIT, min_size=size, max_size=size))
    ids = st.integers(0, size - 1)
    heat = st.sampled_from([0.0, 1e-6, 1e-5, 1e-3, 0.5, 1.0, 1.0, 2.0, 100.0])
    chance = st.sampled_from([0.0, -0.5, 0.5, 2.0])
    bias = draw(st.dictionaries(ids, st.floats(-100, 100), max_size=3))
    sampling = SamplingParams(
        temperature=draw(heat | st.floats(0, 5)),
        top_k=draw(st.integers(0, size + 1)),
        top_p=draw(st.just(1.0) | RATIO),
        min_p=draw(st.just(0.0) | RATIO),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.5, 100.0])),
        presence_penalty=draw(chance),
        frequency_penalty=draw(chance),
        logit_bias=tuple(bias.items()),
        logprobs=draw(st.none() | st.integers(0, 20)),
    )
    history = tuple(draw(st.lists(ids, max_size=12)))
    wide = st.integers(0, 2**64 - 1)
    prompt = draw(st.integers(0, len(history)))
    return np.array(logits, np.float32), Draw(sampling, draw(wide), draw(wide), history, prompt)


@hypothesis.settings(deadline=None, max_examples=400)
@hypothesis.given(cases())
def test_native_equals_the_reference(case: tuple[Row, Draw]) -> None:
    logits, draw = case
    assert sample(logits[None], [draw])[0] == sampler_reference.sample_row(logits, draw)
    plain = replace(draw.sampling, temperature=max(draw.sampling.temperature, 1e-5))
    plain = replace(plain, logit_bias=())
    if (logits > -INF).any():
        expected = sampler_reference.masses(logits.astype(np.float64), plain)
        assert masses(logits, plain) == expected


@pytest.mark.parametrize("size", [1, 2, 8, 15, 16, 17, 63, 64, 255, 256, 257, 1000, 4099])
@pytest.mark.parametrize("spread", [0.0, 0.02, 3.0])
def test_native_equals_the_reference_on_whole_rows(size: int, spread: float) -> None:
    """Many ties (rounded to 1/8) and, at the small spreads, one bucket for all tokens."""
    generator = np.random.default_rng(size)
    for rounded in (False, True):
        wild = generator.normal(0, spread, size)
        logits = (np.round(wild * 8) / 8 if rounded else wild).astype(np.float32)
        for top_k, top_p, min_p in (
            (0, 0.7, 0.0),
            (0, 0.999, 0.0),
            (0, 1.0, 0.01),
            (size // 3, 1.0, 0.0),
            (40, 0.9, 0.05),
        ):
            sampling = SamplingParams(0.8, top_k, top_p, min_p, logprobs=5)
            draw = Draw(sampling, seed=size, position=1)
            expected = sampler_reference.masses(logits.astype(np.float64), sampling)
            assert masses(logits, sampling) == expected
            found = sample(logits[None], [draw])[0]
            assert found == sampler_reference.sample_row(logits, draw)


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(st.lists(st.sampled_from([0, 0, 1, 2, 2**43]), min_size=1, max_size=600))
def test_the_draw_is_exact_at_every_border(mass: list[int]) -> None:
    hypothesis.assume(sum(mass) > 0)
    borders = [0, 1, 2**64 - 1]
    passed = 0
    for m in mass[:300]:
        passed += m
        border = -(-(passed << 64) // sum(mass))  # the first bits beyond this token
        borders += [border - 1, border]
    for bits in borders:
        if 0 <= bits < 2**64:
            assert _native.drawn(mass, bits) == sampler_reference.drawn(mass, bits)


def ulps(found: float, right: float) -> float:
    return abs(found - right) / math.ulp(right)


def test_exp_and_log_are_within_two_ulp() -> None:
    generator = random.Random(1)
    inputs = [-generator.uniform(0, 10 ** generator.uniform(-8, 2.845)) for _ in range(20_000)]
    inputs += [0.0, -5e-324, -700.0, -math.log(2) / 2, -math.log(2) * 1.5]
    for x in inputs:
        assert ulps(_native.exp_nonpositive(x), math.exp(x)) <= 2
        y = generator.choice([1 - x, 1 - x / 1e3, math.exp(x)])
        assert ulps(_native.natural_log(y), math.log(y)) <= 2 if y != 1 else True
    assert [_native.exp_nonpositive(x) for x in inputs] == list(
        sampler_reference.exp(np.array(inputs))
    )
    assert _native.exp_nonpositive(-INF) == _native.exp_nonpositive(-700.0) > 0
    assert _native.natural_log(1.0) == 0.0
    logs = [1 - x for x in inputs]
    assert [_native.natural_log(y) for y in logs] == [sampler_reference.log(y) for y in logs]


@hypothesis.given(cases(), st.data())
@hypothesis.settings(deadline=None, max_examples=300)
def test_a_masked_row_is_that_of_the_reference(case: tuple[Row, Draw], data: st.DataObject) -> None:
    """And the row beside it, which has no mask, is what it is alone."""
    logits, draw = case
    flags = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)))
    allowed = np.array(flags)
    num_words = -(-len(logits) // 32)
    bits = np.zeros(num_words * 32, dtype=np.bool_)
    bits[: len(logits)] = allowed
    words = np.packbits(bits, bitorder="little").view(np.uint32)[None]
    two = np.stack([logits, logits])
    sampled = Sampler()(two, [draw, draw], Masks(words, [1]))
    found = [
        sampled.reports.get(row) or SampleOutcome(token_id)
        for row, token_id in enumerate(sampled.token_ids)
    ]
    assert found[0] == sample(logits[None], [draw])[0]
    assert found[1] == SampleOutcome(*sampler_reference.sample_row(logits, draw, allowed))


def test_a_mask_of_another_length_is_an_error_of_its_row() -> None:
    draws = [Draw(SamplingParams(), 0, 0)] * 2
    sampled = Sampler()(
        np.zeros((2, 40), np.float32), draws, Masks(np.ones((1, 1), np.uint32), [0])
    )
    assert sampled.reports[0].error == "the mask has another length than the row"
    assert 1 not in sampled.reports
    with pytest.raises(ValueError, match="each mask needs the row"):
        Sampler()(np.zeros((2, 40), np.float32), draws, Masks(np.ones((1, 2), np.uint32), []))
