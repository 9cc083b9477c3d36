"""Gemma 3: Gemma 2 with head norms instead of caps, and five layers with a window to one without.

Owns: how its files say so: layers with a window turn by frequencies of their own.
May not know: what a weight is made of, where keys and values live.
Read next: `gemma2.py` (the layers), `qwen3.py` (the attention).

Source: arXiv 2503.19786, section 2.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from firsthand.compute.ops import Ops, X
from firsthand.models import gemma2, qwen3, rope, scaling
from firsthand.models.family import Family
from firsthand.models.fields import MAX_CONTEXT, Fields
from firsthand.models.rope import RopeSpec
from firsthand.models.spec import MAX_LAYERS, ModelSpec, Reading, Words, windows_by_type
from firsthand.weights.checkpoint import GgufLayout, Slot

LOCAL_THETA = 10000.0
PATTERN = 6  # every sixth layer has no window


def forward(ops: Ops[X], spec: ModelSpec) -> X:
    """(L, V) the logits of the rows that are wanted."""
    return gemma2.decoder(ops, spec, qwen3.attention)


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    return gemma2.decoder_slots(spec, qwen3.attention_slots)


def of_config(words: Words, spec: ModelSpec) -> ModelSpec:
    fields = words.fields
    pattern = fields.integer("sliding_window_pattern", 1, MAX_LAYERS, PATTERN)
    window = fields.integer("sliding_window", 0, MAX_CONTEXT, 0)
    slides = [(layer + 1) % pattern != 0 for layer in range(spec.num_layers)]
    spec = replace(
        gemma2.of_config(words, spec),
        windows=windows_by_type(fields, spec.num_layers, window, slides),
    )
    return replace(spec, local_rope=_local_rope(fields, spec, words.trained_context))


def _local_rope(fields: Fields, spec: ModelSpec, trained: int) -> RopeSpec | None:
    """From the table of its type of layer, or in older files by `rope_local_base_freq`."""
    if not spec.windows:
        return None
    if "sliding_attention" in fields.table("rope_parameters"):
        local = scaling.rope_fields(fields, "sliding_attention")
        kind = scaling.rope_kind(local)
        return scaling.from_config(kind, local, spec.head_size, trained, spec.context_length)
    theta = fields.number("rope_local_base_freq", 1.0, scaling.MAX_THETA, LOCAL_THETA)
    return RopeSpec("default", rope.default(theta, spec.head_size))


def of_gguf(words: Words, spec: ModelSpec) -> ModelSpec:
    """As Gemma 2's; of the largest model, which has 62 layers, the scale of the queries differs."""
    fields = words.fields
    window = fields.integer("attention.sliding_window", 0, MAX_CONTEXT, 0)
    theta = fields.number("rope.freq_base_swa", 1.0, scaling.MAX_THETA, LOCAL_THETA)
    scalar = spec.width / spec.num_heads if spec.num_layers == 62 else spec.head_size
    slides = [(layer + 1) % PATTERN != 0 for layer in range(spec.num_layers)]
    return replace(
        gemma2.scaled(spec),
        activation="gelu_tanh",
        windows=windows_by_type(fields, spec.num_layers, window, slides),
        local_rope=RopeSpec("default", rope.default(theta, spec.head_size)) if window else None,
        attention_scale=scalar**-0.5,
        logit_cap=fields.optional_number("final_logit_softcapping", 1e-3, gemma2.MAX_CAP),
    )


FAMILY = Family(
    config_name="Gemma3ForCausalLM",
    gguf_name="gemma3",
    gguf_layout=GgufLayout(
        MappingProxyType({**gemma2.GGUF_NAMES, **qwen3.HEAD_NORM_NAMES}), interleaved=False
    ),
    slots=slots,
    forward=forward,
    config=Reading(
        gemma2.OPTIONS | {"sliding_window_pattern", "rope_parameters"},
        MappingProxyType(gemma2.DEFAULTS | {"query_pre_attn_scalar": 256, "rope_theta": 1e6}),
        of_config,
    ),
    gguf=Reading(
        frozenset(("attention.sliding_window", "rope.freq_base_swa", "final_logit_softcapping")),
        MappingProxyType({"rope.freq_base": 1e6}),
        of_gguf,
    ),
)
