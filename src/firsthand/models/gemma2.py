"""Gemma 2: a norm before and after each part, soft caps, and a window in every other layer.

Owns: the layers with their four norms, and its tensors. A gain w of a checkpoint means 1 + w; GGUF
files have the sum.
May not know: what a weight is made of, where keys and values live.
Read next: `gemma3.py`, which has the same layers.

Source: arXiv 2408.00118, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from firsthand.compute.ops import Ops, X
from firsthand.models import llama
from firsthand.models.family import Family
from firsthand.models.fields import MAX_CONTEXT
from firsthand.models.spec import MAX_WIDTH, ModelSpec, Reading, Words, windows_by_type
from firsthand.weights.checkpoint import GgufLayout, Slot

# `ffn_norm` is another norm than Llama's, and so are the two after the parts.
GGUF_NAMES = MappingProxyType(
    {
        **llama.GGUF_NAMES,
        "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
        "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
    }
)
MAX_CAP = 1e6


def forward(ops: Ops[X], spec: ModelSpec) -> X:
    """(L, V) the logits of the rows that are wanted."""
    return decoder(ops, spec, llama.attention)


def decoder(ops: Ops[X], spec: ModelSpec, attend: llama.Part[X]) -> X:
    """x + norm(part(norm(x))) twice a layer; the embedding is scaled, the logits are capped."""
    x = ops.embed(llama.EMBEDDING, spec.embedding_scale)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        y = attend(ops, spec, layer, x)
        x = ops.add(x, ops.norm(y, f"{prefix}.post_attention_layernorm.weight", spec.norm_eps))
        h = ops.norm(x, f"{prefix}.pre_feedforward_layernorm.weight", spec.norm_eps)
        y = llama.gated(ops, spec, f"{prefix}.mlp", h)
        x = ops.add(x, ops.norm(y, f"{prefix}.post_feedforward_layernorm.weight", spec.norm_eps))
    x = ops.norm(x, llama.NORM, spec.norm_eps)
    return ops.head(x, llama.HEAD, spec.logit_cap)


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    return decoder_slots(spec, llama.attention_slots)


def decoder_slots(spec: ModelSpec, attention_slots: llama.LayerSlots) -> tuple[Slot, ...]:
    def of_layer(spec: ModelSpec, layer: int) -> Iterator[Slot]:
        prefix = f"model.layers.{layer}"
        for slot in attention_slots(spec, layer):
            yield replace(slot, offset=1.0) if slot.name.endswith("norm.weight") else slot
        for place in ("post_attention", "pre_feedforward", "post_feedforward"):
            yield Slot(f"{prefix}.{place}_layernorm.weight", (spec.width,), offset=1.0)
        yield from llama.gated_slots(spec, f"{prefix}.mlp")

    return llama.decoder_slots(spec, of_layer, gain_offset=1.0)


def of_config(words: Words, spec: ModelSpec) -> ModelSpec:
    """Layers 0, 2, 4, … have a window, unless the file names the type of each."""
    fields = words.fields
    window = fields.integer("sliding_window", 0, MAX_CONTEXT, 0)
    slides = [layer % 2 == 0 for layer in range(spec.num_layers)]
    return replace(
        scaled(spec),
        windows=windows_by_type(fields, spec.num_layers, window, slides),
        attention_scale=fields.number("query_pre_attn_scalar", 1.0, MAX_WIDTH) ** -0.5,
        score_cap=fields.optional_number("attn_logit_softcapping", 1e-3, MAX_CAP),
        logit_cap=fields.optional_number("final_logit_softcapping", 1e-3, MAX_CAP),
    )


def scaled(spec: ModelSpec) -> ModelSpec:
    return replace(spec, embedding_scale=math.sqrt(spec.width))


def of_gguf(words: Words, spec: ModelSpec) -> ModelSpec:
    """GGUF knows neither the scale of the queries, which differs in the largest model alone (46
    layers), nor which layers have a window."""
    fields = words.fields
    window = fields.integer("attention.sliding_window", 0, MAX_CONTEXT, 4096)
    scalar = spec.width / spec.num_heads if spec.num_layers == 46 else spec.head_size
    slides = [layer % 2 == 0 for layer in range(spec.num_layers)]
    return replace(
        scaled(spec),
        activation="gelu_tanh",
        windows=windows_by_type(fields, spec.num_layers, window, slides),
        attention_scale=scalar**-0.5,
        score_cap=fields.number("attn_logit_softcapping", 1e-3, MAX_CAP, 50.0),
        logit_cap=fields.number("final_logit_softcapping", 1e-3, MAX_CAP, 30.0),
    )


OPTIONS = frozenset(
    (
        "sliding_window",
        "layer_types",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    )
)
GGUF_OPTIONS = frozenset(
    ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
)
# What a config leaves out because it is so in every model of the family.
DEFAULTS = MappingProxyType(
    {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256}
)

FAMILY = Family(
    config_name="Gemma2ForCausalLM",
    gguf_name="gemma2",
    gguf_layout=GgufLayout(GGUF_NAMES, interleaved=False),
    slots=slots,
    forward=forward,
    config=Reading(OPTIONS, DEFAULTS | {"query_pre_attn_scalar": 256}, of_config),
    gguf=Reading(GGUF_OPTIONS, refine=of_gguf),
)
