"""Names of tensors: both directions of the table, and what no rule may guess."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.models.llama import GGUF_LAYOUT as LAYOUT
from firsthand.models.scaling import ROPE_FACTORS
from firsthand.weights.tensor_names import (
    canonical_names,
    from_gguf,
    is_ignorable,
    to_gguf,
)

PAIRS = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
    ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
    ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
    ("blk.3.attn_q.bias", "model.layers.3.self_attn.q_proj.bias"),
    ("blk.12.attn_k.weight", "model.layers.12.self_attn.k_proj.weight"),
    ("blk.12.attn_v.bias", "model.layers.12.self_attn.v_proj.bias"),
    ("blk.7.attn_output.weight", "model.layers.7.self_attn.o_proj.weight"),
    ("blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
    ("blk.7.ffn_gate.weight", "model.layers.7.mlp.gate_proj.weight"),
    ("blk.7.ffn_up.weight", "model.layers.7.mlp.up_proj.weight"),
    ("blk.7.ffn_down.bias", "model.layers.7.mlp.down_proj.bias"),
]


@pytest.mark.parametrize(("gguf", "canonical"), PAIRS)
def test_both_directions(gguf: str, canonical: str) -> None:
    assert from_gguf(gguf, LAYOUT) == canonical
    assert to_gguf(canonical, LAYOUT) == gguf


@pytest.mark.oracle
def test_every_tensor_of_the_family_has_a_name() -> None:
    """The library's own list of a llama file, without mixtures of experts."""
    import gguf

    for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.LLAMA]:
        name = gguf.TENSOR_NAMES[tensor].format(bid=5) + ".weight"
        if "exps" not in name and "gate_inp" not in name:
            assert from_gguf(name, LAYOUT) is not None or is_ignorable(name), name


@settings(deadline=None, max_examples=200)
@given(st.text(st.sampled_from("blk.0123attn_qnormweight"), max_size=24))
def test_a_known_name_returns_to_itself(name: str) -> None:
    canonical = from_gguf(name, LAYOUT)
    assert canonical is None or to_gguf(canonical, LAYOUT) == name


@pytest.mark.parametrize(
    "name",
    [
        "blk.03.attn_q.weight",
        "blk.-1.attn_q.weight",
        "blk.٣.attn_q.weight",
        "blk.9999999.attn_q.weight",
        "blk.attn_q.weight",
        "attn_q.weight",
        "blk.0.token_embd.weight",
        "blk.{}.attn_q.weight",
        "blk.0.attn_q",
        "blk.0.attn_q.weight ",
        "token_embd.weight\n",
        "",
    ],
)
def test_near_misses_are_unknown(name: str) -> None:
    assert from_gguf(name, LAYOUT) is None


def test_unknown_gguf_names_stay_as_they_are() -> None:
    names = canonical_names(["blk.0.attn_q.weight", "blk.0.mystery.weight"], LAYOUT)
    assert names["blk.0.attn_q.weight"] == "model.layers.0.self_attn.q_proj.weight"
    assert names["blk.0.mystery.weight"] == "blk.0.mystery.weight"


def test_a_missing_prefix_is_added() -> None:
    names = ["embed_tokens.weight", "layers.0.mlp.up_proj.weight", "norm.weight", "lm_head.weight"]
    assert list(canonical_names(names, None).values()) == [
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ]


def test_a_prefix_is_not_guessed_where_some_names_have_it() -> None:
    names = ["model.norm.weight", "norm.weight"]
    assert canonical_names(names, None) == {name: name for name in names}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (ROPE_FACTORS, True),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", True),
        ("rotary_emb.inv_freq", True),
        ("blk.4.attn_rot_embd.weight", True),
        ("model.layers.0.self_attn.rotary_emb.inv_freq.weight", False),
        ("model.layers.0.self_attn.q_norm.weight", False),
    ],
)
def test_what_may_be_left_unused(name: str, expected: bool) -> None:
    assert is_ignorable(name) == expected
