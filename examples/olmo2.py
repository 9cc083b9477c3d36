"""A model family of one's own: OLMo 2, which norms what a part gives, and not what it takes.

    firsthand run FOLDER "The capital of France is" --family examples/olmo2.py:FAMILY

FOLDER is a checkpoint in the form of the Hugging Face hub, as allenai/OLMo-2-0425-1B-Instruct.
Source: arXiv 2501.00656. What is not said here is as in `firsthand.models.llama`.
"""

from collections.abc import Iterator

from firsthand.compute.ops import Ops, X
from firsthand.models import llama
from firsthand.models.family import Family
from firsthand.models.spec import ModelSpec
from firsthand.weights.checkpoint import GgufLayout, Slot

LAYER = "model.layers.{}"


def forward(ops: Ops[X], spec: ModelSpec) -> X:
    return llama.decoder(ops, spec, attention, feed_forward)


def attention(ops: Ops[X], spec: ModelSpec, layer: int, x: X) -> X:
    """norm(o(attend(rope(norm(q(x))), rope(norm(k(x))), v(x)))): q and k are normed whole."""
    prefix = LAYER.format(layer)

    def turned(name: str, num_heads: int) -> X:
        y = ops.linear(x, f"{prefix}.self_attn.{name}_proj.weight")
        y = ops.norm(y, f"{prefix}.self_attn.{name}_norm.weight", spec.norm_eps)
        return ops.rope(y, num_heads)

    q, k = turned("q", spec.num_heads), turned("k", spec.num_kv_heads)
    ops.store(layer, k, ops.linear(x, f"{prefix}.self_attn.v_proj.weight"))
    mixed = ops.attend(layer, q, spec.num_heads, spec.num_kv_heads)
    y = ops.linear(mixed, f"{prefix}.self_attn.o_proj.weight")
    return ops.norm(y, f"{prefix}.post_attention_layernorm.weight", spec.norm_eps)


def feed_forward(ops: Ops[X], spec: ModelSpec, layer: int, x: X) -> X:
    """norm(down(act(gate(x)) · up(x)))."""
    prefix = LAYER.format(layer)
    y = llama.gated(ops, spec, f"{prefix}.mlp", x)
    return ops.norm(y, f"{prefix}.post_feedforward_layernorm.weight", spec.norm_eps)


def layer_slots(spec: ModelSpec, layer: int) -> Iterator[Slot]:
    """The tensors that the two parts name, with their shapes."""
    prefix, m = LAYER.format(layer), spec.width
    for name, width in (("q", spec.q_width), ("k", spec.kv_width), ("v", spec.kv_width)):
        yield Slot(f"{prefix}.self_attn.{name}_proj.weight", (width, m))
    yield Slot(f"{prefix}.self_attn.q_norm.weight", (spec.q_width,))
    yield Slot(f"{prefix}.self_attn.k_norm.weight", (spec.kv_width,))
    yield Slot(f"{prefix}.self_attn.o_proj.weight", (m, spec.q_width))
    yield Slot(f"{prefix}.post_attention_layernorm.weight", (m,))
    yield from llama.gated_slots(spec, f"{prefix}.mlp")
    yield Slot(f"{prefix}.post_feedforward_layernorm.weight", (m,))


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    return llama.decoder_slots(spec, layer_slots)


FAMILY = Family(
    config_name="Olmo2ForCausalLM",
    gguf_name=None,  # folders with a config.json alone
    gguf_layout=GgufLayout(llama.GGUF_NAMES, interleaved=False),
    slots=slots,
    forward=forward,
)
