"""Mistral: Llama in which a row sees the last few thousand positions only.

Owns: how its config says so.
May not know: how a window is kept.
Read next: `llama.py`, whose mathematics it has; `compute/ops.py: AttentionRule`.

Its GGUF files call themselves `llama`, and say nothing of a window. Source: arXiv 2310.06825.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from firsthand.models import llama
from firsthand.models.family import Family
from firsthand.models.fields import MAX_CONTEXT
from firsthand.models.spec import ModelSpec, Reading, Words, windows_by_type


def of_config(words: Words, spec: ModelSpec) -> ModelSpec:
    window = words.fields.integer("sliding_window", 0, MAX_CONTEXT, 0)
    every = [True] * spec.num_layers
    return replace(spec, windows=windows_by_type(words.fields, spec.num_layers, window, every))


CONFIG = Reading(frozenset(("sliding_window", "layer_types")), refine=of_config)

FAMILY = Family(
    config_name="MistralForCausalLM",
    gguf_name=None,
    gguf_layout=llama.GGUF_LAYOUT,
    slots=llama.slots,
    forward=llama.forward,
    # A config without the key is older than models without a window.
    config=replace(CONFIG, defaults=MappingProxyType({"sliding_window": 4096})),
)
