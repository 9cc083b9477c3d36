"""Phi-3: Llama whose projections lie in one tensor, and LongRoPE where a config asks for it.

Owns: which rows of the joined tensors are whose.
May not know: what a weight is made of, how rows are cut out of the file.
Read next: `llama.py`, whose mathematics it has; `weights/cuts.py`, which cuts.

Nothing is joined or split while it runs: the parts are slots of their own, and the executor may
join what reads the same rows. Source: arXiv 2404.14219.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from firsthand.models import llama, mistral
from firsthand.models.family import Family
from firsthand.models.fields import MAX_CONTEXT
from firsthand.models.spec import ModelSpec, Reading, Words
from firsthand.weights.checkpoint import GgufLayout, Slot, Whole

# In GGUF `ffn_up` is gate and up.
GGUF_NAMES = MappingProxyType(
    {
        **{gguf: ours for gguf, ours in llama.GGUF_NAMES.items() if gguf != "blk.{}.ffn_gate"},
        "blk.{}.attn_qkv": "model.layers.{}.self_attn.qkv_proj",
        "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
    }
)


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    return llama.decoder_slots(spec, layer_slots)


def layer_slots(spec: ModelSpec, layer: int) -> Iterator[Slot]:
    """Llama's; of the joined ones, each with its place in the whole."""
    m, q, kv, f = spec.width, spec.q_width, spec.kv_width, spec.ffn_width
    attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    qkv, gate_up = f"{attention}.qkv_proj.weight", f"{mlp}.gate_up_proj.weight"
    places = {
        f"{attention}.q_proj.weight": Whole(qkv, (q + 2 * kv, m), 0),
        f"{attention}.k_proj.weight": Whole(qkv, (q + 2 * kv, m), q),
        f"{attention}.v_proj.weight": Whole(qkv, (q + 2 * kv, m), q + kv),
        f"{mlp}.gate_proj.weight": Whole(gate_up, (2 * f, m), 0),
        f"{mlp}.up_proj.weight": Whole(gate_up, (2 * f, m), f),
    }
    for slot in llama.layer_slots(spec, layer):
        yield replace(slot, part_of=places.get(slot.name))


def of_gguf(words: Words, spec: ModelSpec) -> ModelSpec:
    window = words.fields.integer("attention.sliding_window", 0, MAX_CONTEXT, 0)
    return replace(spec, windows=(window,) * spec.num_layers if window else ())


FAMILY = Family(
    config_name="Phi3ForCausalLM",
    gguf_name="phi3",
    gguf_layout=GgufLayout(GGUF_NAMES, interleaved=False),
    slots=slots,
    forward=llama.forward,
    config=mistral.CONFIG,
    gguf=Reading(frozenset(("attention.sliding_window",)), refine=of_gguf),
)
