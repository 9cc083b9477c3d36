"""From GGUF metadata to a `ModelSpec`.

Owns: the keys of GGUF that all families share, and their checks.
May not know: tensors but for their names and shapes, arrays, executors. Standard library only.
Read next: `config_form.py` (the same of config.json, and how a file is trusted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from firsthand.checks import check_integer
from firsthand.errors import UnsupportedModel
from firsthand.models import scaling
from firsthand.models.fields import GGUF, MAX_CONTEXT, Fields
from firsthand.models.spec import (
    MAX_FFN_WIDTH,
    MAX_HEAD_SIZE,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    PLAIN,
    ModelSpec,
    Reading,
    Words,
    check_even,
    check_heads,
)

GGUF_KEYS = frozenset(
    (
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "expert_count",
        "tensor_data_layout",
    )
)


def spec_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    architecture: str,
    max_context: int | None = None,
    rope_factors: Mapping[str, Sequence[float]] = MappingProxyType({}),
    reading: Reading = PLAIN,
) -> ModelSpec:
    """The spec of a GGUF file; `tensor_shapes` have the outermost dimension first.

    `architecture` is our name of it. `rope_factors` are the values of the tensors in
    `scaling.ROPE_TENSORS`, demanded when the file has them. Raises as `spec_from_config`.
    """
    prefix = Fields(GGUF, metadata).text("general.architecture") + "."
    defaults = {prefix + name: value for name, value in reading.defaults.items()}
    fields = Fields(GGUF, defaults | {**metadata}, prefix)
    _refuse_options(fields, reading.options)
    if max_context is not None:
        check_integer("max_context", max_context, 1)
    width, num_heads, num_kv_heads, head_size = _gguf_head_sizes(fields)
    trained = fields.integer("context_length", 1, MAX_CONTEXT)
    context = trained if max_context is None else min(trained, max_context)
    spec = ModelSpec(
        architecture=architecture,
        vocab_size=_gguf_vocab_size(fields, tensor_shapes, width),
        num_layers=fields.integer("block_count", 1, MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        ffn_width=fields.integer("feed_forward_length", 1, MAX_FFN_WIDTH),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=scaling.from_gguf(fields, tensor_shapes, head_size, trained, context, rope_factors),
        context_length=context,
        tied_head="output.weight" not in tensor_shapes,
        attention_bias=_has_bias(tensor_shapes, "attn_q", "attn_k", "attn_v"),
        attention_output_bias=_has_bias(tensor_shapes, "attn_output"),
        mlp_bias=_has_bias(tensor_shapes, "ffn_gate", "ffn_up", "ffn_down"),
    )
    return reading.refine(Words(fields, trained, tensor_shapes), spec)


def _refuse_options(fields: Fields, understood: frozenset[str]) -> None:
    known = GGUF_KEYS | scaling.GGUF_ROPE_KEYS | understood
    for key in fields.values:
        name = key.removeprefix(fields.prefix)
        if name != key and name not in known:
            raise UnsupportedModel(f"{GGUF}: {key[:80]} is not understood")
    if fields.integer("expert_count", 0, 2**20, 0) and "expert_used_count" not in understood:
        raise UnsupportedModel(
            f"{GGUF}: {fields.prefix}expert_count is set: experts are not computed"
        )


def _gguf_head_sizes(fields: Fields) -> tuple[int, int, int, int]:
    width = fields.integer("embedding_length", 1, MAX_WIDTH)
    num_heads = fields.integer("attention.head_count", 1, MAX_HEADS)
    num_kv_heads = fields.integer("attention.head_count_kv", 1, MAX_HEADS, num_heads)
    if fields.get("attention.key_length") is None and width % num_heads:
        raise fields.error("embedding_length", f"{width} is no multiple of {num_heads} heads")
    head_size = fields.integer("attention.key_length", 2, MAX_HEAD_SIZE, width // num_heads)
    check_heads(fields, "attention.head_count", num_heads, num_kv_heads)
    check_even(fields, "attention.key_length", head_size)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(name, 1, MAX_HEAD_SIZE, head_size) != head_size:
            raise UnsupportedModel(
                f"{GGUF}: {fields.prefix}{name} is not the head size {head_size}"
            )
    return width, num_heads, num_kv_heads, head_size


def _gguf_vocab_size(
    fields: Fields, tensor_shapes: Mapping[str, tuple[int, ...]], width: int
) -> int:
    shape = tensor_shapes.get("token_embd.weight", ())
    if len(shape) != 2 or shape[1] != width or not 1 <= shape[0] <= MAX_VOCAB:
        raise fields.error("embedding_length", f"{width} does not fit token_embd.weight {shape}")
    return shape[0]


def _has_bias(tensor_shapes: Mapping[str, tuple[int, ...]], *parts: str) -> bool:
    """One bias tensor is enough for all its kind to be demanded."""
    endings = tuple(f".{part}.bias" for part in parts)
    return any(name.endswith(endings) for name in tensor_shapes)
