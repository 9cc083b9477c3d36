"""The rewrite rules: what each removes, and what it must leave alone."""

from __future__ import annotations

from collections import Counter

import pytest

from firsthand.compute.fusion import RULES, fuse
from firsthand.compute.plan import Op, Recorder, Value
from firsthand.errors import InvalidRequest
from tests.compute.test_plan import SPEC, recorded, shape_of


def names(ops: list[Op]) -> Counter[str]:
    return Counter(op.name for op in ops)


def test_all_rules_leave_five_steps_per_layer() -> None:
    ops = fuse(recorded())
    assert names(ops) == {"embed": 1, "linear": 8, "store": 2, "attend": 2, "head": 1}
    assert len(ops) == 2 + 6 * SPEC.num_layers
    qkv, store, attend, output, gate_up, down = ops[1:7]
    assert len(qkv.weights) == 3
    assert qkv.norm is not None
    assert store.rotate
    assert attend.rotate
    assert output.residual is not None
    assert gate_up.gated == "silu"
    assert down.residual is not None
    assert ops[-1].norm is not None


@pytest.mark.parametrize(
    ("rule", "op", "left"),
    [
        ("share-input", "linear", 14),
        ("norm-linear", "norm", 5),
        ("gate-up", "activation", 2),
        ("residual", "add", 4),
        ("rope", "rope", 4),
    ],
)
def test_a_rule_that_is_off_leaves_its_steps(rule: str, op: str, left: int) -> None:
    assert names(fuse(recorded(), {rule}))[op] == left


def test_no_rule_at_all_gives_the_recorded_plan() -> None:
    assert fuse(recorded(), {rule.name for rule in RULES}) == recorded()


def test_fused_steps_still_read_only_what_was_written_before() -> None:
    for off in [set(), *({rule.name} for rule in RULES)]:
        known: set[Value] = set()
        for op in fuse(recorded(), off):
            assert set(op.reads) <= known
            known.update(op.outputs)


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"disabled_rules.*'fold'.*share-input"):
        fuse([], {"fold"})


def test_a_value_with_two_readers_is_not_fused_away() -> None:
    recorder = Recorder(shape_of)
    x = recorder.embed("model.embed_tokens.weight")
    h = recorder.norm(x, "gain", 1e-5)
    down = recorder.linear(
        recorder.activation(
            gate := recorder.linear(h, "model.layers.0.mlp.gate_proj.weight"),
            recorder.linear(h, "model.layers.0.mlp.up_proj.weight"),
            "silu",
        ),
        "model.layers.0.mlp.down_proj.weight",
    )
    total = recorder.add(h, down)
    recorder.add(total, down)
    recorder.activation(gate, gate, "silu")
    ops = fuse(recorder.ops)
    assert names(ops)["norm"] == 1, "the norm is read by a linear op and by an add"
    assert names(ops)["activation"] == 2, "gate is read twice"
    assert names(ops)["add"] == 2, "the linear result is read twice"


def test_a_residual_that_is_written_later_is_not_fused() -> None:
    recorder = Recorder(shape_of)
    x = recorder.embed("model.embed_tokens.weight")
    y = recorder.linear(x, "model.layers.0.self_attn.o_proj.weight")
    later = recorder.norm(x, "gain", 1e-5)
    recorder.add(later, y)
    assert names(fuse(recorder.ops))["add"] == 1


def test_a_refused_rule_is_shown_in_short() -> None:
    with pytest.raises(InvalidRequest) as refused:
        fuse([], {"x" * 10**6})
    assert len(str(refused.value)) < 400
