"""From `config.json` to a `ModelSpec`.

Owns: the keys of Hugging Face's `config.json` that all families share, and their checks.
May not know: tensors, arrays, executors. Standard library only.
Read next: `gguf_form.py` (the same of GGUF), `rope.py` (frequencies).

A file is not trusted: sizes are checked for type and range, an option that would change the
mathematics and that we do not compute is refused by name, and two places that disagree are an
error. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from firsthand.checks import check_integer
from firsthand.errors import CheckpointError, UnsupportedModel
from firsthand.models import scaling
from firsthand.models.fields import CONFIG, MAX_CONTEXT, Fields
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

ACTIVATIONS = MappingProxyType(
    {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh"}
)
# Options that change the mathematics, with the values that change nothing. Whatever a family's
# reading understands is such an option to the others, also if it does not stand here.
NEUTRAL = MappingProxyType(
    {
        "quantization_config": (),
        "sliding_window": (0,),
        "use_sliding_window": (False,),
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
        "use_bidirectional_attention": (False,),
        "layer_types": (),
        "is_encoder_decoder": (False,),
        "is_decoder": (True, False),
        "add_cross_attention": (False,),
    }
)
# Of those, what every family reads, or says nothing without another that is refused.
HARMLESS = frozenset(("rope_parameters", "max_window_layers"))
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
    readings: Mapping[str, Reading] = MappingProxyType({}),
) -> ModelSpec:
    """The spec of a Hugging Face folder's `config.json`.

    `architectures` are the file's names of those that we compute, each with ours; `readings` are
    by ours.
    `max_context` lowers the context; with dynamic RoPE it may also raise it, up to
    factor · trained length, because that scaling is computed for the configured context.
    Raises CheckpointError for a field of wrong type, range or two values, UnsupportedModel for
    an architecture or option that is not computed, InvalidRequest for `max_context`.
    """
    outer = Fields(CONFIG, _object(CONFIG, config))
    architecture, fields = _text_model(outer, architectures)
    reading = readings.get(architecture, PLAIN)
    fields = Fields(CONFIG, {**reading.defaults, **fields.values})
    known = frozenset().union(*(other.options for other in readings.values()))
    _refuse_options(fields, reading.options, known - HARMLESS)
    width, num_heads, num_kv_heads, head_size = _head_sizes(fields)
    trained = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    by_layer = "full_attention" if "rope_parameters" in reading.options else None
    rope_fields = scaling.rope_fields(fields, by_layer)
    kind = scaling.rope_kind(rope_fields)
    context = _configured_context(trained, max_context, kind, rope_fields)
    bias = fields.flag("attention_bias", False)
    spec = ModelSpec(
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
        activation=_activation(fields),
        tied_head=fields.flag("tie_word_embeddings", False),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )
    return reading.refine(Words(fields, trained), spec)


def _activation(fields: Fields) -> str:
    """Gemma's files may have both names, and mean the first."""
    name = "hidden_act" if fields.get("hidden_activation") is None else "hidden_activation"
    activation = fields.text(name, "silu")
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"{CONFIG}: {name} {activation[:40]!r} is not computed")
    return ACTIVATIONS[activation]


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
    return known_architecture(names[0], architectures)


def known_architecture(name: str, architectures: Mapping[str, str]) -> str:
    if name not in architectures:
        known = ", ".join(architectures)
        raise UnsupportedModel(f"architecture {name[:80]!r} is not computed; these: {known}")
    return architectures[name]


def _refuse_options(
    fields: Fields, understood: frozenset[str], of_families: frozenset[str]
) -> None:
    """`of_families` is what any family understands."""
    for name in sorted({*NEUTRAL, *of_families} - understood):
        value, neutral = fields.get(name), NEUTRAL.get(name, ())
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
    check_heads(fields, "num_attention_heads", num_heads, num_kv_heads)
    check_even(fields, "head_dim", head_size)
    return width, num_heads, num_kv_heads, head_size


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
