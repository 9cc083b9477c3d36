"""Each kernel against its formula in float64, element by element, on every instruction set here.

Owns: the formulas and their error bounds. `U` is one rounding.
A bound counts the roundings on the longest way to an element, times the sum of magnitudes that
they act on; whatever is larger is a wrong kernel and not rounding.
May not know: models. Read next: `test_executor.py`, the whole model; `digest.cpp`, equal bits.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from firsthand.compute.fusion import RULES
from firsthand.compute.ops import Ops
from firsthand.kvcache.arrays import KVLayout, KVType
from firsthand.quant.formats import (
    ChannelWeight,
    FloatWeight,
    GroupedWeight,
    Weight,
    decode,
)
from tests.compute.native.kernel_bench import (
    MAX_ROWS,
    Bench,
    Doubles,
    Floats,
    U,
    check,
    floats,
    normal,
)
from tests.compute.native.micro import (
    FORMATS,
    batch,
    instruction_sets,
    random_weight,
    spec,
)

pytestmark = pytest.mark.native

SHAPES = [(1, 1), (5, 15), (16, 16), (17, 31), (33, 100), (47, 600)]  # (n, k)
CONTEXTS = (1, 15, 16, 17, 63, 64, 65, 129)  # a chunk has 64 positions, a tile 16
ALL_RULES = tuple(rule.name for rule in RULES)


def magnitudes(weight: Weight) -> Doubles:
    """|w|, or the sum of magnitudes that it is made of: |scale · (code − zero)| + |minimum|."""
    whole = np.abs(decode(weight)).astype(np.float64)
    if not isinstance(weight, GroupedWeight) or weight.minima is None:
        return whole
    minima = np.abs(np.repeat(weight.minima.astype(np.float64), weight.format.group, axis=1))
    return np.asarray(whole + 2 * minima[:, : whole.shape[1]], np.float64)


def steps(x: Doubles, channel: bool) -> Doubles:
    """The step that a row is rounded to. For int8 per channel, 127 of them reach to three times the
    mean magnitude or to the largest, and 16,319 to the largest."""
    peak = np.abs(x).max(axis=1, keepdims=True)
    if not channel:
        return np.asarray(peak / 32767, np.float64)
    usual = 3 * np.abs(x).mean(axis=1, keepdims=True)
    return np.asarray(np.maximum(np.minimum(usual, peak) / 127, peak / 16319), np.float64)


def product(x: Doubles, weight: Weight) -> tuple[Doubles, Doubles]:
    """x · weightᵀ and how far a kernel may be from it. Floats: 32 roundings in a run, one per run.
    Integers: half a step of the rounded row, and four roundings per group beside the scales'."""
    k = x.shape[1]
    sums = np.abs(x) @ magnitudes(weight).T
    if isinstance(weight, FloatWeight):
        error = (32 + -(-k // 32) + 1) * U * sums
    else:
        group = k if isinstance(weight, ChannelWeight) else weight.format.group
        step = steps(x, isinstance(weight, ChannelWeight))
        error = 0.5001 * step * magnitudes(weight).sum(axis=1)
        error += (4 * -(-k // group) + 8) * U * (sums + step * magnitudes(weight).sum(axis=1))
    return x @ decode(weight).astype(np.float64).T, error


def silu(x: Doubles) -> Doubles:
    return np.asarray(x / (1 + np.exp(-x)), np.float64)


def gelu_tanh(x: Doubles) -> Doubles:
    return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), np.float64)


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("name", FORMATS)
def test_linear(name: str, isa: str) -> None:
    """Bias and residual included; from 1 to 17 rows the same bits."""
    for n, k in SHAPES:
        weight = random_weight(np.random.default_rng(n), n, k, FORMATS[name])
        wide = {"w": weight, "r": random_weight(np.random.default_rng(k), n, k, FORMATS["float32"])}
        x, bias = normal(1, MAX_ROWS, k), normal(2, n)
        bench = Bench(
            lambda ops, x: ops.add(ops.linear(x, "r"), ops.linear(x, "w", "b")),
            x,
            n,
            wide,
            {"b": bias},
            isa=isa,
        )
        got = bench.run()
        want, error = product(x.astype(np.float64), weight)
        residual, residual_error = product(x.astype(np.float64), wide["r"])
        total = np.abs(want) + np.abs(bias) + np.abs(residual)
        check(got, want + bias + residual, error + residual_error + 3 * U * total)
        for rows in range(1, MAX_ROWS):
            assert bench.run(0, rows).tobytes() == got[:rows].tobytes(), (n, k, rows)


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_gate_up(name: str, kind: str, isa: str) -> None:
    """act(x · gateᵀ) · (x · upᵀ): both activations have a slope below 1.13."""
    for n, k in SHAPES:
        rng = np.random.default_rng(n)
        weights = {one: random_weight(rng, n, k, FORMATS[name]) for one in ("gate", "up")}
        x = 2 * normal(3, MAX_ROWS, k)

        def forward(ops: Ops[Any], value: Any) -> Any:
            return ops.activation(ops.linear(value, "gate"), ops.linear(value, "up"), kind)

        gate, gate_error = product(x.astype(np.float64), weights["gate"])
        up, up_error = product(x.astype(np.float64), weights["up"])
        active = ACTIVATIONS[kind](gate)
        error = 1.13 * gate_error * (np.abs(up) + up_error) + np.abs(active) * up_error
        error += 8 * U * np.abs(gate * up)
        results = [
            Bench(forward, x, n, weights, isa=isa, disabled_rules=rules).run()
            for rules in ((), ALL_RULES)
        ]
        check(results[0], active * up, error)
        assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 100, 577])
def test_norm(k: int, isa: str) -> None:
    """k / 16 roundings of the sum in 16 lanes, four where they join; the root halves them."""
    x, gain = 5 * normal(4, MAX_ROWS, k), normal(5, k)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + 1e-5) * gain
    for rules in ((), ALL_RULES):
        bench = Bench(
            lambda ops, x: ops.norm(x, "gain", 1e-5),
            x,
            k,
            vectors={"gain": gain},
            isa=isa,
            disabled_rules=rules,
        )
        check(bench.run(), want, (k / 32 + 10) * U * np.abs(want))


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("head_size", [2, 6, 24, 64, 130])
def test_rope(head_size: int, isa: str) -> None:
    heads, factor = 3, 1.25
    x = normal(7, 70, heads * head_size)
    bench = Bench(
        lambda ops, x: ops.rope(x, heads),
        x,
        heads * head_size,
        head_size=head_size,
        factor=factor,
        isa=isa,
    )
    angles = np.outer(np.arange(70), spec(head_size=head_size).rope.inverse_frequencies)[:, None]
    a, b = np.split(x.astype(np.float64).reshape(70, heads, head_size), 2, axis=-1)
    cos, sin = factor * np.cos(angles), factor * np.sin(angles)
    want = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
    size = np.tile(np.abs(a) + np.abs(b), 2).reshape(x.shape)
    check(bench.run(), want, 4 * U * factor * size)


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_and_sum_of_large_and_small(kind: str, isa: str) -> None:
    """From where e⁻ˣ overflows to where it vanishes."""
    x = np.concatenate([np.linspace(-300, 300, 601), np.linspace(-9, 9, 500), [0.0, -0.0, 1e-30]])
    x = np.ascontiguousarray(x.astype(np.float32)[None, :])
    bench = Bench(
        lambda ops, x: ops.add(ops.activation(x, x, kind), x), x, x.size, isa=isa, threads=2
    )
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        want = ACTIVATIONS[kind](wide) * wide
    check(bench.run(), want + wide, U * (8 * wide * wide + 2 * np.abs(want + wide)) + 1e-34)


def attention(q: Doubles, k: Doubles, v: Doubles, integers: bool) -> tuple[Doubles, Doubles]:
    """softmax(q · kᵀ / √D) · v over positions 0 … own, for (T, H, D) and (T, G, D), and its bound.

    A score has a rounding per dimension, and an error of a score is one of its weight, relatively.
    A sum over positions has one per position of a chunk, three per chunk where chunks are merged.
    In integers a query is half a step off in each dimension, and a weight half of one in each
    chunk, where its step is that of the value, summed with these weights.
    """
    rows, heads, d = q.shape
    k, v = (np.repeat(one, heads // k.shape[1], axis=1) for one in (k, v))
    scores, sizes = (
        np.einsum("qhd,khd->hqk", *pair) / np.sqrt(d) for pair in ((q, k), (abs(q), abs(k)))
    )
    seen = np.tri(rows, dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    of_score = (d + 5) * U * np.where(seen, sizes, 0).max(-1)
    half_step = 0.501 / 32767
    if integers:
        q_steps = half_step * np.linalg.norm(q, axis=-1).T
        of_score += q_steps[..., None].max(-1) * np.abs(k).sum(-1).max() / np.sqrt(d)
    error = np.expm1(2 * of_score) + (64 + 3 * -(-rows // 64) + 30) * U
    want = np.einsum("hqk,khd->qhd", weights, v)
    bound = np.einsum("hqk,khd->qhd", weights, np.abs(v)) * error.T[..., None]
    for start in range(0, rows if integers else 0, 64):
        chunk, norms = slice(start, start + 64), np.linalg.norm(v[start : start + 64], axis=-1)
        total = np.einsum("hqk,kh->qh", weights[..., chunk], norms)
        bound += half_step * total[..., None] * (np.abs(v[chunk]) / norms[..., None]).sum(0)
    return want, bound


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("dtype", get_args(KVType))
@pytest.mark.parametrize("head_size", [2, 24, 80])
def test_store_and_attend(head_size: int, dtype: KVType, isa: str) -> None:
    """Many rows at once against the formula over what the store holds; one row at a time, around
    the borders of tiles and chunks, the same bits. So for both layouts, and small blocks."""
    heads, groups, rows = 6, 3, max(CONTEXTS)
    widths = [count * head_size for count in (heads, groups, groups)]
    parts = np.split(np.eye(sum(widths)), np.cumsum(widths)[:-1])
    x = 2 * normal(8, rows, sum(widths))

    def forward(ops: Ops[Any], value: Any) -> Any:
        q, k, v = (ops.linear(value, name) for name in "qkv")
        ops.store(0, k, v)
        return ops.attend(0, q, heads, groups)

    def bench(threads: int) -> Bench:
        weights: dict[str, Weight] = dict(zip("qkv", map(floats, parts), strict=True))
        return Bench(
            forward,
            x,
            widths[0],
            weights,
            head_size=head_size,
            num_kv_heads=groups,
            isa=isa,
            threads=threads,
        )

    whole, single = bench(1), bench(2)
    q, k, v = (x @ part.T.astype(np.float32) for part in parts)
    k, v = (one.reshape(rows, groups, head_size) for one in (k, v))
    results = []
    layouts: list[tuple[KVLayout, int]] = [("tiles", 0), ("rows", 0), ("tiles", 16)]
    for layout, block_size in layouts:
        store = whole.store(dtype, layout, block_size)
        results.append(whole.run(store=store))
        slots = batch(store, (1, 0, np.arange(rows))).slots()
        stored = store.layer(0).read(slots)
        for got, exact in zip(stored, (k, v), strict=True):
            if dtype in {"int8", "int16"}:
                check(got, exact.astype(np.float64), _half_step(exact, dtype))
            else:
                assert np.array_equal(got, exact.astype(dtype))
        for count in CONTEXTS:
            place = single.store(dtype, layout, block_size)
            if count > 1:
                single.run(0, count - 1, place)
            row = single.run(count - 1, count, place)
            assert row.tobytes() == results[0][count - 1].tobytes(), (layout, count)
    wide = q.reshape(rows, heads, head_size).astype(np.float64)
    wide_keys, wide_values = (one.astype(np.float64) for one in stored)
    want, bound = attention(wide, wide_keys, wide_values, dtype == "int16")
    check(results[0], want.reshape(rows, -1), bound.reshape(rows, -1))
    assert len({result.tobytes() for result in results}) == 1


def _half_step(x: Floats, dtype: KVType) -> Doubles:
    """How far codes may be from it: half of max|x| / 127, or of |x| / 32767, per token and head."""
    wide = x.astype(np.float64)
    if dtype == "int8":
        step = np.abs(wide).max(axis=-1, keepdims=True) / 127
    else:
        step = np.linalg.norm(wide, axis=-1, keepdims=True) / 32767
    return np.asarray(np.broadcast_to(0.502 * step, x.shape), np.float64)
