"""Cutting a recorded model between its layers: pure, no arrays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firsthand.compute.fusion import fuse
from firsthand.compute.ops import Ops, X
from firsthand.compute.plan import Op, lay_out, record
from firsthand.compute.stages import names_of, stage_ops
from firsthand.errors import InvalidRequest, UnsupportedModel
from firsthand.models import families
from firsthand.models.spec import ExpertsSpec, ModelSpec, RopeSpec

SPEC = ModelSpec(
    architecture="llama",
    vocab_size=50,
    num_layers=5,
    width=12,
    num_heads=4,
    num_kv_heads=2,
    head_size=4,
    ffn_width=20,
    norm_eps=1e-5,
    rope=RopeSpec("default", (1.0, 0.5)),
    context_length=32,
    tied_head=True,
)
EXPERTS = ExpertsSpec(num_experts=4, top_k=2, width=8, renormalise=True)


def spec_of(architecture: str) -> ModelSpec:
    spec = replace(SPEC, architecture=architecture)
    if families.FAMILIES[architecture].has_experts or architecture == "mixtral":
        return replace(spec, experts=EXPERTS)
    if architecture.startswith("gemma"):
        return replace(spec, windows=(8, 8, None, 8, 8), activation="gelu_tanh")
    return spec


def recorded(spec: ModelSpec) -> list[Op]:
    shapes = {slot.name: slot.shape for slot in families.slots(spec)}

    def shape_of(name: str) -> tuple[int, int]:
        n, k = shapes[name]
        return n, k

    return record(families.program(spec).forward, shape_of)


@pytest.mark.parametrize("architecture", families.FAMILIES)
@pytest.mark.parametrize("split", [(5,), (2, 3), (1, 1, 3), (1, 1, 1, 1, 1)])
def test_the_stages_together_are_the_model(architecture: str, split: tuple[int, ...]) -> None:
    """Each operator is in one stage, and one value of the model's width goes from each to the
    next."""
    spec = spec_of(architecture)
    whole = recorded(spec)
    first, together, sent = 0, [], None
    for count in split:
        ops = stage_ops(whole, first, first + count)
        if sent is not None:
            assert ops[0] == Op("receive", (), (sent,))
            assert sent.width == spec.width
            ops = ops[1:]
        sent = None
        if ops[-1].name == "send":
            (sent,) = ops.pop().inputs
        assert {op.layer for op in ops if op.layer >= 0} == set(range(count))
        together += [replace(op, layer=op.layer + first) if op.layer >= 0 else op for op in ops]
        first += count
    assert sent is None
    assert together == whole


def test_a_stage_is_fused_as_the_whole_is() -> None:
    fused = fuse(recorded(SPEC))
    parts = [fuse(stage_ops(recorded(SPEC), *layers)) for layers in ((0, 2), (2, 5))]
    inner = [op for part in parts for op in part if op.name not in ("receive", "send")]
    assert [(op.name, op.weights, op.norm, op.residual, op.gated, op.rotate) for op in inner] == [
        (op.name, op.weights, op.norm, op.residual, op.gated, op.rotate) for op in fused
    ]
    assert all(lay_out(part, 8).total > 0 for part in parts)


def test_a_stage_names_its_own_tensors() -> None:
    names = [names_of(stage_ops(recorded(SPEC), *layers)) for layers in ((0, 2), (2, 5))]
    assert names[0] | names[1] == {slot.name for slot in families.slots(SPEC)}
    assert not names[0] & names[1]
    assert "model.embed_tokens.weight" in names[0]
    assert {"lm_head.weight", "model.norm.weight"} <= names[1]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 1), (0, 6), (-1, 2)])
def test_layers_that_are_not_there_are_refused(first: int, last: int) -> None:
    with pytest.raises(InvalidRequest, match="split"):
        stage_ops(recorded(SPEC), first, last)


def test_two_values_at_a_border_are_refused() -> None:
    """A model whose layers all add the embedding once more cannot be cut at one value."""

    def forward(ops: Ops[X]) -> X:
        embedding = x = ops.embed("embedding")
        for layer in range(2):
            x = ops.linear(x, "square")
            ops.store(layer, x, x)
            x = ops.add(ops.attend(layer, x, 1, 1), embedding)
        return ops.head(ops.add(x, embedding), "head")

    ops = record(forward, {"embedding": (9, 4), "square": (4, 4), "head": (9, 4)}.__getitem__)
    with pytest.raises(UnsupportedModel, match="layer 1"):
        stage_ops(ops, 0, 1)
