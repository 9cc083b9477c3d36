"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values.

Owns: how its files say what they leave out: the bias is a matter of course.
May not know: what a weight is made of, where keys and values live.
Read next: `llama.py`, whose mathematics it has.

Source: arXiv 2407.10671, section 2.2.
"""

from __future__ import annotations

from dataclasses import replace

from firsthand.models import llama
from firsthand.models.family import Family
from firsthand.models.fields import MAX_CONTEXT
from firsthand.models.spec import ModelSpec, Reading, Words, windows_by_type
from firsthand.weights.checkpoint import GgufLayout

WINDOW_OPTIONS = frozenset(
    ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
)


def of_config(words: Words, spec: ModelSpec) -> ModelSpec:
    return replace(with_windows(words, spec), attention_bias=True, attention_output_bias=False)


def with_windows(words: Words, spec: ModelSpec) -> ModelSpec:
    """The layers from `max_window_layers` on have a window, where it is switched on."""
    fields = words.fields
    window = fields.integer("sliding_window", 0, MAX_CONTEXT, 0)
    if not fields.flag("use_sliding_window", False):
        window = 0
    first = fields.integer("max_window_layers", 0, MAX_CONTEXT, 28)
    slides = [layer >= first for layer in range(spec.num_layers)]
    return replace(spec, windows=windows_by_type(fields, spec.num_layers, window, slides))


FAMILY = Family(
    config_name="Qwen2ForCausalLM",
    gguf_name="qwen2",
    gguf_layout=GgufLayout(llama.GGUF_NAMES, interleaved=False),
    slots=llama.slots,
    forward=llama.forward,
    config=Reading(WINDOW_OPTIONS, refine=of_config),
)
