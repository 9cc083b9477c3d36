"""The mixtures of Qwen: many small experts; in Qwen2 one more that every row has.

Owns: which layers have experts, and how files of the two generations say so.
May not know: what a weight is made of, where keys and values live.
Read next: `experts.py`; `qwen2.py` and `qwen3.py`, whose attention they have.

Sources: arXiv 2407.10671, section 2.2.2; arXiv 2505.09388, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from firsthand.compute.ops import Ops, X
from firsthand.models import experts, llama, qwen2, qwen3
from firsthand.models.family import Family
from firsthand.models.fields import Fields
from firsthand.models.spec import (
    MAX_EXPERTS,
    MAX_FFN_WIDTH,
    MAX_LAYERS,
    ExpertsSpec,
    ModelSpec,
    Reading,
    Words,
)
from firsthand.weights.checkpoint import GgufLayout, Slot

NAMES = experts.Names("mlp", gate="gate_proj", up="up_proj", down="down_proj")


def qwen2_forward(ops: Ops[X], spec: ModelSpec) -> X:
    """(L, V) the logits of the rows that are wanted."""
    return llama.decoder(ops, spec, llama.attention, feed_forward)


def qwen3_forward(ops: Ops[X], spec: ModelSpec) -> X:
    """(L, V) the logits of the rows that are wanted."""
    return llama.decoder(ops, spec, qwen3.attention, feed_forward)


def feed_forward(ops: Ops[X], spec: ModelSpec, layer: int, x: X) -> X:
    h = ops.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight", spec.norm_eps)
    if spec.experts is None or not spec.has_experts(layer):
        return llama.gated(ops, spec, f"model.layers.{layer}.mlp", h)
    return experts.mixture(ops, NAMES, spec.experts, layer, h, spec.activation)


def slots(spec: ModelSpec, attention_slots: llama.LayerSlots) -> tuple[Slot, ...]:
    def of_layer(spec: ModelSpec, layer: int) -> Iterator[Slot]:
        yield from attention_slots(spec, layer)
        if spec.experts is None or not spec.has_experts(layer):
            yield from llama.feed_forward_slots(spec, layer)
            return
        yield Slot(f"model.layers.{layer}.post_attention_layernorm.weight", (spec.width,))
        yield from experts.mixture_slots(NAMES, spec.experts, layer, spec.width)

    return llama.decoder_slots(spec, of_layer)


def of_config(words: Words, spec: ModelSpec) -> ModelSpec:
    fields = words.fields
    name = "num_experts" if fields.get("num_local_experts") is None else "num_local_experts"
    num_experts = fields.integer(name, 1, MAX_EXPERTS)
    found = ExpertsSpec(
        num_experts=num_experts,
        top_k=fields.integer("num_experts_per_tok", 1, num_experts),
        width=fields.integer("moe_intermediate_size", 1, MAX_FFN_WIDTH),
        renormalise=fields.flag("norm_topk_prob", False),
        shared_width=fields.integer("shared_expert_intermediate_size", 0, MAX_FFN_WIDTH, 0),
        dense_layers=_dense_layers(fields, spec.num_layers),
    )
    return replace(qwen2.with_windows(words, spec), experts=found)


def _dense_layers(fields: Fields, num_layers: int) -> frozenset[int]:
    """Those that are named, and all but every `decoder_sparse_step`-th."""
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    named = fields.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(layer) is int for layer in named):
        raise fields.error("mlp_only_layers", "must be a list of layers")
    between = {layer for layer in range(num_layers) if (layer + 1) % step}
    return frozenset(between | {*named} & {*range(num_layers)})


def of_qwen2_config(words: Words, spec: ModelSpec) -> ModelSpec:
    bias = words.fields.flag("qkv_bias", True)
    return replace(of_config(words, spec), attention_bias=bias, attention_output_bias=False)


def of_gguf(words: Words, spec: ModelSpec, renormalise: bool) -> ModelSpec:
    found = experts.of_gguf(words, spec.ffn_width, renormalise)
    router = "blk.{}.ffn_gate_inp.weight"
    dense = frozenset(
        layer for layer in range(spec.num_layers) if router.format(layer) not in words.tensor_shapes
    )
    return replace(spec, experts=replace(found, dense_layers=dense))


OPTIONS = qwen2.WINDOW_OPTIONS | {"num_experts", "num_local_experts"}

QWEN2_MOE = Family(
    config_name="Qwen2MoeForCausalLM",
    gguf_name="qwen2moe",
    gguf_layout=GgufLayout(MappingProxyType(llama.GGUF_NAMES | NAMES.gguf()), interleaved=False),
    slots=partial(slots, attention_slots=llama.attention_slots),
    forward=qwen2_forward,
    config=Reading(OPTIONS, refine=of_qwen2_config),
    gguf=Reading(experts.GGUF_OPTIONS, refine=partial(of_gguf, renormalise=False)),
    has_experts=True,
)
QWEN3_MOE = Family(
    config_name="Qwen3MoeForCausalLM",
    gguf_name="qwen3moe",
    gguf_layout=GgufLayout(
        MappingProxyType(llama.GGUF_NAMES | qwen3.HEAD_NORM_NAMES | NAMES.gguf()),
        interleaved=False,
    ),
    slots=partial(slots, attention_slots=qwen3.attention_slots),
    forward=qwen3_forward,
    config=Reading(OPTIONS, refine=of_config),
    gguf=Reading(experts.GGUF_OPTIONS, refine=partial(of_gguf, renormalise=True)),
    has_experts=True,
)
