"""The table of families: each computes with exactly its tensors, and refuses what it does not know.

Owns: names, shapes and the reading of each family's files. May not know: numbers
(`test_family_oracle.py` has them). Read next: `test_spec.py`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from firsthand.compute.ops import AttentionRule
from firsthand.compute.plan import Op, record
from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.models.families import FAMILIES, program, read_config, read_gguf, slots
from firsthand.models.spec import ModelSpec

COMMON: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 48,
    "intermediate_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "mistral": {"architectures": ["MistralForCausalLM"]},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 8},
    "gemma3_text": {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 8},
    "phi3": {"architectures": ["Phi3ForCausalLM"]},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 3},
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "shared_expert_intermediate_size": 28,
        "mlp_only_layers": [2],
    }
    | EXPERTS,
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 2} | EXPERTS,
}


def spec(name: str, **changes: Any) -> ModelSpec:
    return read_config(COMMON | CONFIGS[name] | changes)


def recorded(spec: ModelSpec) -> list[Op]:
    shapes = {slot.name: slot.shape for slot in slots(spec)}
    return record(program(spec).forward, lambda name: (shapes[name][0], shapes[name][1]))


def test_every_row_of_the_table_is_tested() -> None:
    assert CONFIGS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_model_7_a_family_uses_its_slots_and_no_other(name: str) -> None:
    found = [slot.name for slot in slots(spec(name))]
    used: list[str] = []
    for op in recorded(spec(name)):
        used += [*op.weights, *(bias for bias in op.biases if bias is not None)]
        used += [] if op.norm is None else [op.norm[0]]
    assert sorted(used) == sorted(found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_family_is_known_by_its_model_type(name: str) -> None:
    named = COMMON | CONFIGS[name] | {"architectures": None, "model_type": name}
    assert read_config(named) == spec(name)


def rules(spec: ModelSpec) -> list[AttentionRule]:
    return [op.rule for op in recorded(spec) if op.name == "attend"]


def test_windows_are_where_the_file_says() -> None:
    assert spec("mistral").windows == (4096,) * 4  # what a config without the key means
    assert spec("mistral", sliding_window=None).windows == ()
    assert spec("qwen2", sliding_window=7).windows == ()
    used = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3}
    assert spec("qwen2", **used).windows == (None, None, None, 7)
    assert spec("gemma2").windows == (8, None, 8, None)
    assert spec("gemma3_text", sliding_window_pattern=2).windows == (8, None, 8, None)
    assert spec("gemma3_text").windows == (8, 8, 8, 8)  # every sixth layer has none
    types = ["full_attention", "sliding_attention"] * 2
    assert spec("gemma2", layer_types=types).windows == (None, 8, None, 8)
    assert [rule.window for rule in rules(spec("gemma2"))] == [8, None, 8, None]
    for wrong in (["full_attention"], ["strange"] * 4, "full_attention"):
        with pytest.raises(CheckpointError, match="layer_types"):
            spec("gemma2", layer_types=wrong)


def test_gemma_s_numbers() -> None:
    found = spec("gemma2", attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    assert found.embedding_scale == math.sqrt(48)
    assert (found.activation, found.tied_head) == ("gelu_tanh", True)
    assert (found.attention_scale, found.score_cap, found.logit_cap) == (1 / 16, 50.0, 30.0)
    assert rules(found)[0] == AttentionRule(1 / 16, 50.0, 8)
    assert recorded(found)[0].factor == math.sqrt(48)
    assert recorded(found)[-1].factor == 30.0
    assert {slot.offset for slot in slots(found) if "norm" in slot.name} == {1.0}
    turned = [
        op.table
        for op in recorded(spec("gemma3_text", sliding_window_pattern=2))
        if op.name == "rope"
    ]
    assert turned == [1, 1, 0, 0, 1, 1, 0, 0]
    local = spec("gemma3_text").local_rope
    assert local is not None
    assert local.inverse_frequencies[1] == pytest.approx(10000.0 ** (-2 / 16))
    assert spec("gemma3_text").rope.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / 16))


def test_experts_are_what_the_file_says() -> None:
    found = spec("qwen2_moe", norm_topk_prob=True).experts
    assert found is not None
    assert (found.num_experts, found.top_k, found.width, found.shared_width) == (5, 2, 12, 28)
    assert (found.renormalise, found.dense_layers) == (True, frozenset({2}))
    sparse = spec("qwen3_moe").experts
    assert sparse is not None
    assert (sparse.renormalise, sparse.dense_layers) == (False, frozenset({0, 2}))
    assert spec("mixtral", num_experts_per_tok=3).experts is not None
    with pytest.raises(CheckpointError, match="num_experts_per_tok"):
        spec("mixtral", num_experts_per_tok=4)
    with pytest.raises(CheckpointError, match="mlp_only_layers"):
        spec("qwen3_moe", mlp_only_layers=["a"])
    exact = {slot.name for slot in slots(spec("qwen2_moe")) if slot.is_exact}
    assert exact == {
        f"model.layers.{layer}.mlp.{name}.weight"
        for layer in (0, 1, 3)
        for name in ("gate", "shared_expert_gate")
    }


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("llama", "layer_types", ["sliding_attention"] * 4),
        ("llama", "sliding_window_pattern", 6),
        ("qwen3", "sliding_window_pattern", 2),
        ("mistral", "use_sliding_window", True),
        ("qwen2", "attn_logit_softcapping", 50.0),
        ("mistral", "num_local_experts", 8),
        ("qwen3", "query_pre_attn_scalar", 16),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("phi3", "partial_rotary_factor", 0.75),
        ("qwen2", "rope_parameters", {"full_attention": {"rope_theta": 1e6}}),
    ],
)
def test_an_option_of_another_family_is_refused_by_name(name: str, option: str, value: Any) -> None:
    with pytest.raises(UnsupportedModel, match=option):
        spec(name, **{option: value})


def test_options_that_change_nothing_are_taken() -> None:
    """As relatives' files have them."""
    harmless = {"use_sliding_window": False, "max_window_layers": 3, "partial_rotary_factor": 1.0}
    assert spec("llama", **harmless) == spec("llama")


GGUF: dict[str, Any] = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 48,
    "feed_forward_length": 20,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
}
SHAPES = {"token_embd.weight": (11, 48)}


def gguf(name: str, **changes: Any) -> dict[str, Any]:
    values = GGUF | {key.replace("__", "."): value for key, value in changes.items()}
    return {"general.architecture": name} | {f"{name}.{key}": v for key, v in values.items()}


def test_one_name_of_gguf_may_be_two_families() -> None:
    assert read_gguf(gguf("llama"), SHAPES).architecture == "llama"
    mixtral = read_gguf(gguf("llama", expert_count=8, expert_used_count=2), SHAPES)
    assert mixtral.architecture == "mixtral"
    assert mixtral.experts is not None
    assert (mixtral.experts.num_experts, mixtral.experts.width) == (8, 20)
    with pytest.raises(CheckpointError, match="expert_used_count is missing"):
        read_gguf(gguf("llama", expert_count=8), SHAPES)
    with pytest.raises(UnsupportedModel, match="expert_used_count is not understood"):
        read_gguf(gguf("qwen2", expert_used_count=2), SHAPES)


def test_what_gguf_leaves_out_is_known() -> None:
    gemma2 = read_gguf(gguf("gemma2"), SHAPES)
    assert (gemma2.score_cap, gemma2.logit_cap) == (50.0, 30.0)
    assert gemma2.windows == (4096, None)
    gemma3 = read_gguf(gguf("gemma3", attention__sliding_window=32, block_count=7), SHAPES)
    assert gemma3.windows == (32, 32, 32, 32, 32, None, 32)
    assert gemma3.attention_scale == 1 / 4
    assert gemma3.local_rope is not None
    assert gemma3.rope.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / 16))
    largest = read_gguf(gguf("gemma3", attention__sliding_window=32, block_count=62), SHAPES)
    assert largest.attention_scale == pytest.approx((48 / 4) ** -0.5)


def test_longrope_of_gguf_takes_its_table_from_the_configured_context() -> None:
    original = {"rope__scaling__original_context_length": 32, "rope__scaling__attn_factor": 1.2}
    shapes = SHAPES | {"rope_factors_long.weight": (8,), "rope_factors_short.weight": (8,)}
    factors = {"rope_factors_long.weight": [2.0] * 8, "rope_factors_short.weight": [1.0] * 8}
    written = gguf("phi3", **original)
    long, short = (read_gguf(written, shapes, context, factors).rope for context in (64, 32))
    assert long.inverse_frequencies == tuple(f / 2 for f in short.inverse_frequencies)
    assert (long.kind, long.attention_factor) == ("longrope", 1.2)
    with pytest.raises(CheckpointError, match="rope_factors_short"):
        read_gguf(written, shapes, 64, {"rope_factors_long.weight": [2.0] * 8})
