"""The Llama file: which tensors it asks for, and that it computes with exactly those.

Owns: names, shapes and order. May not know: numbers (`compute/torch/test_executor.py` has them).
Read next: `test_spec.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from firsthand.compute.ops import PLAIN_ATTENTION, AttentionRule, ExpertWeights, RoutingRule
from firsthand.errors import UnsupportedModel
from firsthand.models.families import family, program, read_config, slots
from firsthand.models.spec import ModelSpec
from firsthand.weights.checkpoint import Slot


def small(**changes: Any) -> ModelSpec:
    return read_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 11,
            "hidden_size": 48,
            "intermediate_size": 20,
            "num_hidden_layers": 2,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "max_position_embeddings": 64,
        }
        | changes
    )


@dataclass
class Recorder:
    """Operators that compute nothing: a value is its width, a call leaves its line."""

    calls: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)

    def embed(self, table: str, scale: float = 1.0) -> int:
        self.weights.append(table)
        self.calls.append("embed")
        return self.widths[table]

    def norm(self, x: int, gain: str, eps: float, num_heads: int = 1) -> int:
        self.weights.append(gain)
        self.calls.append("norm" if num_heads == 1 else f"norm in {num_heads}")
        return x

    def linear(self, x: int, weight: str, bias: str | None = None) -> int:
        self.weights += [weight] if bias is None else [weight, bias]
        self.calls.append("linear")
        return self.widths[weight]

    def rope(self, x: int, num_heads: int, table: int = 0) -> int:
        self.calls.append(f"rope {x} in {num_heads}" + (f" by {table}" if table else ""))
        return x

    def store(self, layer: int, k: int, v: int) -> None:
        self.calls.append(f"store {layer} {k} {v}")

    def attend(
        self,
        layer: int,
        q: int,
        num_heads: int,
        num_kv_heads: int,
        rule: AttentionRule = PLAIN_ATTENTION,
    ) -> int:
        self.calls.append(f"attend {layer} {num_heads} on {num_kv_heads}")
        return q

    def activation(self, gate: int, up: int, kind: str) -> int:
        assert gate == up
        self.calls.append(kind)
        return gate

    def add(self, x: int, y: int) -> int:
        assert x == y
        self.calls.append("add")
        return x

    def route(self, logits: int, rule: RoutingRule, shared: int | None = None) -> int:
        self.calls.append(f"route {rule.top_k} of {logits}")
        return logits + (shared or 0)

    def experts(self, x: int, weights: int, experts: Sequence[ExpertWeights], kind: str) -> int:
        assert weights == len(experts)
        self.weights += [name for each in experts for name in (each.gate, each.up, each.down)]
        self.calls.append(f"{weights} experts")
        return x

    def head(self, x: int, weight: str, cap: float | None = None) -> int:
        self.weights.append(weight)
        self.calls.append("head")
        return self.widths[weight]


def record(spec: ModelSpec) -> Recorder:
    recorder = Recorder(widths={slot.name: slot.shape[0] for slot in slots(spec)})
    recorder.widths["model.embed_tokens.weight"] = spec.width
    assert program(spec).forward(recorder) == spec.vocab_size
    return recorder


def test_the_forward_is_the_paper_s() -> None:
    layer = ["norm", "linear", "rope 80 in 5", "linear", "rope 16 in 1", "linear", "store 0 16 16"]
    layer += ["attend 0 5 on 1", "linear", "add"]
    layer += ["norm", "linear", "linear", "silu", "linear", "add"]
    assert record(small(num_hidden_layers=1)).calls == ["embed", *layer, "norm", "head"]


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("mlp", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_model_7_the_forward_uses_the_slots_and_no_other(
    attention: bool, mlp: bool, tied: bool
) -> None:
    full = small(attention_bias=attention, mlp_bias=mlp, tie_word_embeddings=tied)
    for spec in (full, replace(full, attention_output_bias=False)):
        names = [slot.name for slot in slots(spec)]
        used = record(spec).weights
        assert sorted(names) == sorted(used)
        assert len(set(names)) == len(names)
        biases = {name.split(".")[-2] for name in names if name.endswith(".bias")}
        wanted = {"q_proj", "k_proj", "v_proj"} if attention else set()
        wanted |= {"o_proj"} if spec.attention_output_bias else set()
        wanted |= {"gate_proj", "up_proj", "down_proj"} if mlp else set()
        assert biases == wanted


def test_model_4_shapes_follow_the_head_size() -> None:
    found = {slot.name: slot for slot in slots(small(attention_bias=True))}
    prefix = "model.layers.1.self_attn"
    assert found[f"{prefix}.q_proj.weight"] == Slot(
        f"{prefix}.q_proj.weight", (80, 48), rope_heads=5
    )
    assert found[f"{prefix}.k_proj.weight"] == Slot(
        f"{prefix}.k_proj.weight", (16, 48), rope_heads=1
    )
    assert found[f"{prefix}.v_proj.weight"] == Slot(f"{prefix}.v_proj.weight", (16, 48))
    assert found[f"{prefix}.o_proj.weight"] == Slot(f"{prefix}.o_proj.weight", (48, 80))
    assert found[f"{prefix}.q_proj.bias"] == Slot(f"{prefix}.q_proj.bias", (80,), rope_heads=5)
    assert found[f"{prefix}.o_proj.bias"] == Slot(f"{prefix}.o_proj.bias", (48,))


def test_the_head_is_tied_only_where_the_spec_says_so() -> None:
    assert slots(small())[-1] == Slot("lm_head.weight", (11, 48), is_head=True)
    tied = slots(small(tie_word_embeddings=True))[-1]
    embedding = "model.embed_tokens.weight"
    assert tied == Slot("lm_head.weight", (11, 48), is_head=True, tied_to=embedding)


def test_a_program_carries_the_spec_s_numbers() -> None:
    spec = small()
    found = program(spec)
    assert (found.vocab_size, found.width, found.num_layers) == (11, 48, 2)
    assert (found.num_heads, found.num_kv_heads, found.head_size) == (5, 1, 16)
    assert (found.ropes, found.context_length) == ((spec.rope,), 64)


def test_a_family_without_a_row_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mamba' is not computed; these: .*llama"):
        family(replace(small(), architecture="mamba"))
