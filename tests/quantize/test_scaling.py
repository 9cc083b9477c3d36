"""Who takes the other side of a scaled column: small cases by hand, and none for what has two.

Owns: feeders and the scales they get. May not know: how a layer is rounded.
Read next: `quantize/scaling.py`.
"""

from __future__ import annotations

import numpy as np

from firsthand.compute.ops import ExpertWeights
from firsthand.compute.plan import Recorder
from firsthand.quant.grid import Grid
from firsthand.quantize.scaling import Feeder, best_scales, feeders, followers


def test_a_column_reads_the_row_of_its_group_of_heads() -> None:
    assert Feeder("v", heads=(4, 2)).rows(8).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert Feeder("up").rows(3).tolist() == [0, 1, 2]


def recorded(*, up_is_read_twice: bool = False) -> Recorder:
    ops = Recorder(lambda name: {"o": (4, 8), "v": (4, 4), "down": (4, 6)}.get(name, (6, 4)))
    x = ops.norm(ops.embed("table"), "gain", 1e-6)
    v = ops.linear(x, "v", "v.bias")
    ops.store(0, v, v) if up_is_read_twice else ops.store(0, ops.linear(x, "k"), v)
    ops.linear(ops.attend(0, ops.linear(x, "q"), 4, 2), "o")
    h = ops.norm(x, "second", 1e-6)
    up = ops.linear(h, "up")
    ops.linear(ops.activation(ops.linear(h, "gate"), up, "silu"), "down")
    if up_is_read_twice:
        ops.add(up, up)
    ops.experts(h, ops.linear(h, "router"), [ExpertWeights("g", "u", "d")], "silu")
    return ops


def test_values_pass_through_attention_and_the_upper_half_through_an_activation() -> None:
    found = feeders(recorded().ops)
    assert found == {
        "o": Feeder("v", "v.bias", (4, 2)),
        "down": Feeder("up"),
        "d": Feeder("u"),
    }


def test_what_somebody_else_reads_too_feeds_nobody() -> None:
    assert feeders(recorded(up_is_read_twice=True).ops) == {"d": Feeder("u")}


def test_a_norm_that_experts_read_is_not_scaled() -> None:
    """A router would have to take the other side, and it stays as it is."""
    assert "second" not in followers(recorded().ops)


def test_scales_through_a_layer_are_powers_of_two_and_help() -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(256, 32)).astype(np.float32)
    x[:, 5] *= 300
    matrix = random.normal(size=(24, 32)).astype(np.float32)
    rows = Feeder("v", heads=(4, 2)).rows(32)
    scales = best_scales(x, x.T @ x, matrix, Grid(8, None, True), rows)
    assert scales.shape == (16,)
    assert np.array_equal(np.exp2(np.rint(np.log2(scales))), scales)
    assert scales[5] == scales.max() > 1
