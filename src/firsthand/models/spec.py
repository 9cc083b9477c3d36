"""What a model is, in the form we use: from the file's words to ours.

Owns: `ModelSpec` and how `config.json` and GGUF metadata become one.
May not know: tensors, arrays, executors. Standard library only.
Read next: `rope.py` (frequencies), then `llama.py` (the mathematics).

A file is not trusted: sizes are checked for type and range, an option that would change the
mathematics and that we do not compute is refused by name, and two places that disagree are an
error. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from firsthand.checks import check_integer
from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.models import scaling
from firsthand.models.fields import CONFIG, GGUF, MAX_CONTEXT, Fields
from firsthand.models.rope import RopeSpec as RopeSpec

MAX_VOCAB = 2**24
MAX_LAYERS = 2**12
MAX_WIDTH = 2**20
MAX_FFN_WIDTH = 2**22
MAX_HEADS = 2**12
MAX_HEAD_SIZE = 2**12


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder-only transformer. Counts and sizes, no tensors."""

    architecture: str  # the name of its row in `families.py`
    vocab_size: int
    num_layers: int
    width: int  # M
    num_heads: int  # H
    num_kv_heads: int  # G; H is a multiple of it
    head_size: int  # D; H·D need not be M
    ffn_width: int  # F
    norm_eps: float
    rope: RopeSpec
    context_length: int
    activation: str = "silu"
    tied_head: bool = False
    attention_bias: bool = False  # q, k, v
    attention_output_bias: bool = False
    mlp_bias: bool = False

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_size


# ---- config.json -------------------------------------------------------------------------------

ACTIVATIONS = MappingProxyType(
    {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh"}
)
# Options of relatives of Llama that change the mathematics, with the values that change nothing.
NEUTRAL = MappingProxyType(
    {
        "quantization_config": (),
        "sliding_window": (),
        "partial_rotary_factor": (1,),
        "rope_interleaved": (False,),
        "rope_traditional": (False,),
        "no_rope_layers": ([],),
        "use_qk_norm": (False,),
        "qk_norm": (False,),
        "attn_logit_softcapping": (),
        "final_logit_softcapping": (),
        "query_pre_attn_scalar": (),
        "num_local_experts": (0, 1),
        "num_experts": (0, 1),
        "parallel_residual": (False,),
        "use_parallel_residual": (False,),
        "alibi": (False,),
        "embedding_multiplier": (1,),
        "residual_multiplier": (1,),
        "attention_multiplier": (),
        "logits_scaling": (1,),
        "logit_scale": (1,),
        "is_encoder_decoder": (False,),
        "is_decoder": (True, False),
        "add_cross_attention": (False,),
    }
)
# What may stand both outside and inside `text_config` and differ: it is not the text model's.
OUTER_ONLY = frozenset(
    (
        "architectures",
        "model_type",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "_name_or_path",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "auto_map",
        "initializer_range",
        "return_dict",
    )
)


def spec_from_config(
    config: Mapping[str, Any],
    architectures: Mapping[str, str],
    max_context: int | None = None,
) -> ModelSpec:
    """The spec of a Hugging Face folder's `config.json`.

    `architectures` are the file's names of those that we compute, each with ours.
    `max_context` lowers the context; with dynamic RoPE it may also raise it, up to
    factor · trained length, because that scaling is computed for the configured context.
    Raises CheckpointError for a field of wrong type, range or two values, UnsupportedModel for
    an architecture or option that is not computed, InvalidRequest for `max_context`.
    """
    outer = Fields(CONFIG, _object(CONFIG, config))
    architecture, fields = _text_model(outer, architectures)
    _refuse_options(fields)
    width, num_heads, num_kv_heads, head_size = _head_sizes(fields)
    trained = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    rope_fields = scaling.rope_fields(fields)
    kind = scaling.rope_kind(rope_fields)
    context = _configured_context(trained, max_context, kind, rope_fields)
    bias = fields.flag("attention_bias", False)
    activation = fields.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"{CONFIG}: hidden_act {activation[:40]!r} is not computed")
    return ModelSpec(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCAB),
        num_layers=fields.integer("num_hidden_layers", 1, MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        ffn_width=fields.integer("intermediate_size", 1, MAX_FFN_WIDTH),
        norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=scaling.from_config(kind, rope_fields, head_size, trained, context),
        context_length=context,
        activation=ACTIVATIONS[activation],
        tied_head=fields.flag("tie_word_embeddings", False),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


def _object(file: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(file, f"must hold an object, not {type(value).__name__}")
    return value


def _text_model(outer: Fields, architectures: Mapping[str, str]) -> tuple[str, Fields]:
    """The architecture, and the fields of the text model wherever they stand.

    A value inside `text_config` counts; the same field outside with another value is
    an error, because whichever we took could be the wrong one.
    """
    inner = Fields(CONFIG, outer.table("text_config"))
    architecture = _architecture(outer, inner, architectures)
    merged = {name: value for name, value in outer.values.items() if name != "text_config"}
    for name, value in inner.values.items():
        other = merged.get(name)
        differs = other is not None and value is not None and other != value
        if differs and name not in OUTER_ONLY:
            raise outer.error(name, "has one value outside text_config and another inside")
        merged[name] = other if value is None else value
    return architecture, Fields(CONFIG, merged)


def _architecture(outer: Fields, inner: Fields, architectures: Mapping[str, str]) -> str:
    """Ours; without the list of names, `model_type` may have it."""
    names = outer.get("architectures") or inner.get("architectures")
    model_type = outer.get("model_type") or inner.get("model_type")
    if names is None and model_type in architectures.values():
        return str(model_type)
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise outer.error("architectures", "must be a list of one name")
    return _known(names[0], architectures)


def _known(name: str, architectures: Mapping[str, str]) -> str:
    if name not in architectures:
        known = ", ".join(architectures)
        raise UnsupportedModel(f"architecture {name[:80]!r} is not computed; these: {known}")
    return architectures[name]


def _refuse_options(fields: Fields) -> None:
    for name, neutral in NEUTRAL.items():
        value = fields.get(name)
        off = name == "sliding_window" and fields.get("use_sliding_window") is False
        if value is not None and not off and value not in neutral:
            raise UnsupportedModel(f"{fields.file}: {name} is set, and is not computed")


def _head_sizes(fields: Fields) -> tuple[int, int, int, int]:
    """(M, H, G, D). An explicit head size is taken as it is; only without one must the
    heads divide the width. Query heads fall into equal groups."""
    width = fields.integer("hidden_size", 1, MAX_WIDTH)
    num_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    num_kv_heads = fields.integer("num_key_value_heads", 1, MAX_HEADS, num_heads)
    if fields.get("head_dim") is None and width % num_heads:
        raise fields.error("hidden_size", f"{width} is no multiple of {num_heads} heads")
    head_size = fields.integer("head_dim", 2, MAX_HEAD_SIZE, width // num_heads)
    _check_heads(fields, "num_attention_heads", num_heads, num_kv_heads)
    _check_even(fields, "head_dim", head_size)
    return width, num_heads, num_kv_heads, head_size


def _check_heads(fields: Fields, name: str, num_heads: int, num_kv_heads: int) -> None:
    if num_heads % num_kv_heads:
        raise fields.error(name, f"{num_heads} is no multiple of {num_kv_heads} key/value heads")


def _check_even(fields: Fields, name: str, head_size: int) -> None:
    if head_size % 2:
        raise fields.error(name, f"{head_size} is odd, and RoPE turns pairs")


def _configured_context(
    trained: int, max_context: int | None, kind: str, rope_fields: Fields
) -> int:
    if max_context is None:
        return trained
    check_integer("max_context", max_context, 1)
    reach = trained
    if kind == "dynamic":
        reach = min(int(trained * scaling.factor_of(rope_fields)), MAX_CONTEXT)
    return min(reach, max_context)


# ---- GGUF --------------------------------------------------------------------------------------

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
        "expert_used_count",
        "tensor_data_layout",
    )
)


def spec_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    architectures: Mapping[str, str],
    max_context: int | None = None,
    rope_factors: Sequence[float] | None = None,
) -> ModelSpec:
    """The spec of a GGUF file; `tensor_shapes` have the outermost dimension first.

    `rope_factors` are the values of `rope_freqs.weight`, demanded when the file has it.
    Raises as `spec_from_config`.
    """
    general = Fields(GGUF, metadata)
    name = general.text("general.architecture")
    architecture = _known(name, architectures)
    fields = Fields(GGUF, metadata, f"{name}.")
    _refuse_gguf_options(fields)
    if max_context is not None:
        check_integer("max_context", max_context, 1)
    width, num_heads, num_kv_heads, head_size = _gguf_head_sizes(fields)
    trained = fields.integer("context_length", 1, MAX_CONTEXT)
    return ModelSpec(
        architecture=architecture,
        vocab_size=_gguf_vocab_size(fields, tensor_shapes, width),
        num_layers=fields.integer("block_count", 1, MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        ffn_width=fields.integer("feed_forward_length", 1, MAX_FFN_WIDTH),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=scaling.from_gguf(fields, tensor_shapes, head_size, trained, rope_factors),
        context_length=trained if max_context is None else min(trained, max_context),
        tied_head="output.weight" not in tensor_shapes,
        attention_bias=_has_bias(tensor_shapes, "attn_q", "attn_k", "attn_v"),
        attention_output_bias=_has_bias(tensor_shapes, "attn_output"),
        mlp_bias=_has_bias(tensor_shapes, "ffn_gate", "ffn_up", "ffn_down"),
    )


def _refuse_gguf_options(fields: Fields) -> None:
    for key in fields.values:
        name = key.removeprefix(fields.prefix)
        if name != key and name not in GGUF_KEYS and name not in scaling.GGUF_ROPE_KEYS:
            raise UnsupportedModel(f"{GGUF}: {key[:80]} is not understood")
    if fields.integer("expert_count", 0, 2**20, 0):
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
    _check_heads(fields, "attention.head_count", num_heads, num_kv_heads)
    _check_even(fields, "attention.key_length", head_size)
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
