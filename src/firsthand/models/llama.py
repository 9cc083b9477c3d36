"""The Llama family: pre-normed attention and gated feed-forward, around one residual stream.

Owns: the tensors and the mathematics of Llama 1 to 3, SmolLM2 and whatever shares their shape; and
the parts that other families are put together from.
May not know: how any operator runs, what a weight is made of, where keys and values live.
Read next: `qwen3.py`, a family that differs in one place; then an executor:
`compute/torch/ops.py`.

Sources: arXiv 2302.13971, section 2.2; arXiv 2305.13245 for grouped heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType

from firsthand.compute.ops import AttentionRule, Ops, X
from firsthand.models.family import Family
from firsthand.models.spec import ModelSpec
from firsthand.weights.checkpoint import GgufLayout, Slot

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

# Source of GGUF's names: the `gguf` package, `constants.py`.
GGUF_NAMES = MappingProxyType(
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
)
GGUF_LAYOUT = GgufLayout(GGUF_NAMES, interleaved=True)

Part = Callable[[Ops[X], ModelSpec, int, X], X]  # of one layer: (T, M) of (T, M)


def forward(ops: Ops[X], spec: ModelSpec) -> X:
    """(L, V) the logits of the rows that are wanted."""
    return decoder(ops, spec, attention, feed_forward)


def decoder(ops: Ops[X], spec: ModelSpec, attend: Part[X], feed: Part[X]) -> X:
    """The layers, each a part that attends and one that does not, added to the residual stream."""
    x = ops.embed(EMBEDDING)
    for layer in range(spec.num_layers):
        x = ops.add(x, attend(ops, spec, layer, x))
        x = ops.add(x, feed(ops, spec, layer, x))
    x = ops.norm(x, NORM, spec.norm_eps)
    return ops.head(x, HEAD)


def attention(ops: Ops[X], spec: ModelSpec, layer: int, x: X, *, head_norms: bool = False) -> X:
    """(T, M): every head looks back over its own sequence. With `head_norms` each head of queries
    and keys is normed before it is turned. A layer with a window turns by `local_rope` if there is
    one."""
    prefix = f"model.layers.{layer}.self_attn"
    bias, eps = spec.attention_bias, spec.norm_eps
    table = int(spec.local_rope is not None and spec.window(layer) is not None)
    h = ops.norm(x, f"model.layers.{layer}.input_layernorm.weight", eps)

    def turned(name: str, num_heads: int) -> X:
        y = linear(ops, h, f"{prefix}.{name}_proj", bias)
        if head_norms:
            y = ops.norm(y, f"{prefix}.{name}_norm.weight", eps, num_heads)
        return ops.rope(y, num_heads, table)

    q, k = turned("q", spec.num_heads), turned("k", spec.num_kv_heads)
    ops.store(layer, k, linear(ops, h, f"{prefix}.v_proj", bias))
    mixed = ops.attend(layer, q, spec.num_heads, spec.num_kv_heads, rule(spec, layer))
    return linear(ops, mixed, f"{prefix}.o_proj", spec.attention_output_bias)


def feed_forward(ops: Ops[X], spec: ModelSpec, layer: int, x: X) -> X:
    """(T, M): down(act(gate(x)) · up(x)). arXiv 2002.05202, equation 6."""
    h = ops.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight", spec.norm_eps)
    return gated(ops, spec, f"model.layers.{layer}.mlp", h)


def gated(ops: Ops[X], spec: ModelSpec, prefix: str, h: X) -> X:
    gate = linear(ops, h, f"{prefix}.gate_proj", spec.mlp_bias)
    up = linear(ops, h, f"{prefix}.up_proj", spec.mlp_bias)
    activated = ops.activation(gate, up, spec.activation)
    return linear(ops, activated, f"{prefix}.down_proj", spec.mlp_bias)


def rule(spec: ModelSpec, layer: int) -> AttentionRule:
    return AttentionRule(spec.attention_scale, spec.score_cap, spec.window(layer))


def linear(ops: Ops[X], x: X, name: str, bias: bool) -> X:
    return ops.linear(x, f"{name}.weight", f"{name}.bias" if bias else None)


LayerSlots = Callable[[ModelSpec, int], Iterator[Slot]]


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    """Every tensor that `forward` names, in the order of use."""
    return decoder_slots(spec, layer_slots)


def decoder_slots(
    spec: ModelSpec, of_layer: LayerSlots, gain_offset: float = 0.0
) -> tuple[Slot, ...]:
    found = [Slot(EMBEDDING, (spec.vocab_size, spec.width), is_head=True)]
    for layer in range(spec.num_layers):
        found.extend(of_layer(spec, layer))
    found.append(Slot(NORM, (spec.width,), offset=gain_offset))
    tied_to = EMBEDDING if spec.tied_head else None
    found.append(Slot(HEAD, (spec.vocab_size, spec.width), is_head=True, tied_to=tied_to))
    return tuple(found)


def layer_slots(spec: ModelSpec, layer: int) -> Iterator[Slot]:
    yield from attention_slots(spec, layer)
    yield from feed_forward_slots(spec, layer)


def attention_slots(spec: ModelSpec, layer: int) -> Iterator[Slot]:
    prefix, m = f"model.layers.{layer}", spec.width
    bias, output = spec.attention_bias, spec.attention_output_bias
    h, g = spec.num_heads, spec.num_kv_heads
    yield Slot(f"{prefix}.input_layernorm.weight", (m,))
    yield from projection(f"{prefix}.self_attn.q_proj", spec.q_width, m, bias, h)
    yield from projection(f"{prefix}.self_attn.k_proj", spec.kv_width, m, bias, g)
    yield from projection(f"{prefix}.self_attn.v_proj", spec.kv_width, m, bias)
    yield from projection(f"{prefix}.self_attn.o_proj", m, spec.q_width, output)


def feed_forward_slots(spec: ModelSpec, layer: int) -> Iterator[Slot]:
    prefix = f"model.layers.{layer}"
    yield Slot(f"{prefix}.post_attention_layernorm.weight", (spec.width,))
    yield from gated_slots(spec, f"{prefix}.mlp")


def gated_slots(spec: ModelSpec, prefix: str) -> Iterator[Slot]:
    m, f, bias = spec.width, spec.ffn_width, spec.mlp_bias
    yield from projection(f"{prefix}.gate_proj", f, m, bias)
    yield from projection(f"{prefix}.up_proj", f, m, bias)
    yield from projection(f"{prefix}.down_proj", m, f, bias)


def projection(
    name: str, n: int, k: int, bias: bool, rope_heads: int | None = None
) -> Iterator[Slot]:
    yield Slot(f"{name}.weight", (n, k), rope_heads=rope_heads)
    if bias:
        yield Slot(f"{name}.bias", (n,), rope_heads=rope_heads)


FAMILY = Family(
    config_name="LlamaForCausalLM",
    gguf_name="llama",
    gguf_layout=GGUF_LAYOUT,
    slots=slots,
    forward=forward,
)
