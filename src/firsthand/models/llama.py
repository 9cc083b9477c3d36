"""The Llama family: pre-normed attention and gated feed-forward, around one residual stream.

Owns: the tensors and the mathematics of Llama 1 to 3, SmolLM2 and whatever shares their shape.
May not know: how any operator runs, what a weight is made of, where keys and values live.
Read next: `families.py`; then an executor: `compute/torch/ops.py`.

Sources: arXiv 2302.13971, section 2.2; arXiv 2305.13245 for grouped heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from firsthand.compute.ops import Ops, X
from firsthand.models.spec import ModelSpec
from firsthand.weights.checkpoint import GgufLayout, Slot

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

# Source of GGUF's names: the `gguf` package, `constants.py`.
GGUF_LAYOUT = GgufLayout(
    names=MappingProxyType(
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
            "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
            "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
            "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
            "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
            "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
            "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
            "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
            "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
            "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
        }
    ),
    interleaved=True,
)


def forward(ops: Ops[X], spec: ModelSpec) -> X:
    """(L, V) the logits of the rows that are wanted."""
    x = ops.embed(EMBEDDING)
    for layer in range(spec.num_layers):
        x = ops.add(x, _attention(ops, spec, layer, x))
        x = ops.add(x, _feed_forward(ops, spec, layer, x))
    x = ops.norm(x, "model.norm.weight", spec.norm_eps)
    return ops.head(x, HEAD)


def _attention(ops: Ops[X], spec: ModelSpec, layer: int, x: X) -> X:
    """(T, M): every head looks back over its own sequence."""
    prefix = f"model.layers.{layer}.self_attn"
    bias = spec.attention_bias
    h = ops.norm(x, f"model.layers.{layer}.input_layernorm.weight", spec.norm_eps)
    q = ops.rope(_linear(ops, h, f"{prefix}.q_proj", bias), spec.num_heads)
    k = ops.rope(_linear(ops, h, f"{prefix}.k_proj", bias), spec.num_kv_heads)
    v = _linear(ops, h, f"{prefix}.v_proj", bias)
    ops.store(layer, k, v)
    mixed = ops.attend(layer, q, spec.num_heads, spec.num_kv_heads)
    return _linear(ops, mixed, f"{prefix}.o_proj", spec.attention_output_bias)


def _feed_forward(ops: Ops[X], spec: ModelSpec, layer: int, x: X) -> X:
    """(T, M): down(act(gate(x)) · up(x)). arXiv 2002.05202, equation 6."""
    prefix = f"model.layers.{layer}.mlp"
    h = ops.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight", spec.norm_eps)
    gate = _linear(ops, h, f"{prefix}.gate_proj", spec.mlp_bias)
    up = _linear(ops, h, f"{prefix}.up_proj", spec.mlp_bias)
    return _linear(
        ops, ops.activation(gate, up, spec.activation), f"{prefix}.down_proj", spec.mlp_bias
    )


def _linear(ops: Ops[X], x: X, name: str, bias: bool) -> X:
    return ops.linear(x, f"{name}.weight", f"{name}.bias" if bias else None)


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    """Every tensor that `forward` names, in the order of use."""
    found = [Slot(EMBEDDING, (spec.vocab_size, spec.width), is_head=True)]
    for layer in range(spec.num_layers):
        found.extend(_layer_slots(spec, f"model.layers.{layer}"))
    found.append(Slot("model.norm.weight", (spec.width,)))
    tied_to = EMBEDDING if spec.tied_head else None
    found.append(Slot(HEAD, (spec.vocab_size, spec.width), is_head=True, tied_to=tied_to))
    return tuple(found)


def _layer_slots(spec: ModelSpec, prefix: str) -> Iterator[Slot]:
    m, f = spec.width, spec.ffn_width
    h, g = spec.num_heads, spec.num_kv_heads
    attention, output, mlp = spec.attention_bias, spec.attention_output_bias, spec.mlp_bias
    yield Slot(f"{prefix}.input_layernorm.weight", (m,))
    yield from _projection(f"{prefix}.self_attn.q_proj", spec.q_width, m, attention, h)
    yield from _projection(f"{prefix}.self_attn.k_proj", spec.kv_width, m, attention, g)
    yield from _projection(f"{prefix}.self_attn.v_proj", spec.kv_width, m, attention)
    yield from _projection(f"{prefix}.self_attn.o_proj", m, spec.q_width, output)
    yield Slot(f"{prefix}.post_attention_layernorm.weight", (m,))
    yield from _projection(f"{prefix}.mlp.gate_proj", f, m, mlp)
    yield from _projection(f"{prefix}.mlp.up_proj", f, m, mlp)
    yield from _projection(f"{prefix}.mlp.down_proj", m, f, mlp)


def _projection(
    name: str, n: int, k: int, bias: bool, rope_heads: int | None = None
) -> Iterator[Slot]:
    yield Slot(f"{name}.weight", (n, k), rope_heads=rope_heads)
    if bias:
        yield Slot(f"{name}.bias", (n,), rope_heads=rope_heads)
