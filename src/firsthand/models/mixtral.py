"""Mixtral: Llama with eight experts in place of the feed-forward, two of them for each row.

Owns: its names, and how its files say how many there are.
May not know: what a weight is made of, where keys and values live.
Read next: `experts.py`.

Its GGUF files call themselves `llama`, and have an `expert_count`. Source: arXiv 2401.04088.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from firsthand.compute.ops import Ops, X
from firsthand.models import experts, llama, mistral
from firsthand.models.family import Family
from firsthand.models.spec import MAX_EXPERTS, ExpertsSpec, ModelSpec, Reading, Words
from firsthand.weights.checkpoint import GgufLayout, Slot

NAMES = experts.Names("block_sparse_moe", gate="w1", up="w3", down="w2")


def forward(ops: Ops[X], spec: ModelSpec) -> X:
    """(L, V) the logits of the rows that are wanted."""
    return llama.decoder(ops, spec, llama.attention, feed_forward)


def feed_forward(ops: Ops[X], spec: ModelSpec, layer: int, x: X) -> X:
    assert spec.experts is not None
    h = ops.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight", spec.norm_eps)
    return experts.mixture(ops, NAMES, spec.experts, layer, h, spec.activation)


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    return llama.decoder_slots(spec, layer_slots)


def layer_slots(spec: ModelSpec, layer: int) -> Iterator[Slot]:
    assert spec.experts is not None
    yield from llama.attention_slots(spec, layer)
    yield Slot(f"model.layers.{layer}.post_attention_layernorm.weight", (spec.width,))
    yield from experts.mixture_slots(NAMES, spec.experts, layer, spec.width)


def of_config(words: Words, spec: ModelSpec) -> ModelSpec:
    num_experts = words.fields.integer("num_local_experts", 1, MAX_EXPERTS)
    top_k = words.fields.integer("num_experts_per_tok", 1, num_experts)
    found = ExpertsSpec(num_experts, top_k, spec.ffn_width, renormalise=True)
    return replace(mistral.of_config(words, spec), experts=found)


def of_gguf(words: Words, spec: ModelSpec) -> ModelSpec:
    return replace(spec, experts=experts.of_gguf(words, spec.ffn_width, renormalise=True))


FAMILY = Family(
    config_name="MixtralForCausalLM",
    gguf_name="llama",
    gguf_layout=GgufLayout(MappingProxyType(llama.GGUF_NAMES | NAMES.gguf()), interleaved=True),
    slots=slots,
    forward=forward,
    config=Reading(
        mistral.CONFIG.options | {"num_local_experts"},
        MappingProxyType({"num_local_experts": 8, "num_experts_per_tok": 2}),
        of_config,
    ),
    gguf=Reading(experts.GGUF_OPTIONS, refine=of_gguf),
    has_experts=True,
)
