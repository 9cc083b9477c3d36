"""Qwen3: each head of queries and keys is normed before it is turned.

Owns: the attention with head norms, and its tensors.
May not know: what a weight is made of, where keys and values live.
Read next: `llama.py`, which has the rest.

Source: arXiv 2505.09388, section 2; arXiv 2302.05442, section 2.2, for normed queries and keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from firsthand.compute.ops import Ops, X
from firsthand.models import llama, qwen2
from firsthand.models.family import Family
from firsthand.models.spec import ModelSpec, Reading
from firsthand.weights.checkpoint import GgufLayout, Slot

HEAD_NORM_NAMES = MappingProxyType(
    {
        "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    }
)
GGUF_LAYOUT = GgufLayout(MappingProxyType(llama.GGUF_NAMES | HEAD_NORM_NAMES), interleaved=False)


def forward(ops: Ops[X], spec: ModelSpec) -> X:
    """(L, V) the logits of the rows that are wanted."""
    return llama.decoder(ops, spec, attention, llama.feed_forward)


def attention(ops: Ops[X], spec: ModelSpec, layer: int, x: X) -> X:
    """(T, M): as Llama's, but rope(norm(q)) and rope(norm(k)), each head by itself."""
    return llama.attention(ops, spec, layer, x, head_norms=True)


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    return llama.decoder_slots(spec, layer_slots)


def layer_slots(spec: ModelSpec, layer: int) -> Iterator[Slot]:
    yield from attention_slots(spec, layer)
    yield from llama.feed_forward_slots(spec, layer)


def attention_slots(spec: ModelSpec, layer: int) -> Iterator[Slot]:
    yield from llama.attention_slots(spec, layer)
    for name in ("q_norm", "k_norm"):
        yield Slot(f"model.layers.{layer}.self_attn.{name}.weight", (spec.head_size,))


FAMILY = Family(
    config_name="Qwen3ForCausalLM",
    gguf_name="qwen3",
    gguf_layout=GGUF_LAYOUT,
    slots=slots,
    forward=forward,
    config=Reading(qwen2.WINDOW_OPTIONS, refine=qwen2.with_windows),
)
