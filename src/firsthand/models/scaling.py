"""Which RoPE scaling a file asks for, and with which numbers: from its keys to a `RopeSpec`.

Owns: the keys of `rope_scaling`, `rope_parameters` and GGUF's `rope.*`, and their checks.
May not know: the rest of a config, tensors. Standard library only.
Read next: `rope.py`, the formulas; `config_form.py` and `gguf_form.py`, the users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firsthand.errors import UnsupportedModel
from firsthand.models import rope
from firsthand.models.fields import CONFIG, GGUF, MAX_CONTEXT, Fields
from firsthand.models.rope import RopeSpec

MAX_THETA = 1e12
MAX_FACTOR = 1e6
ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
ROPE_KEYS = frozenset(
    (
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "short_factor",
        "long_factor",
        "partial_rotary_factor",
        "finetuned",
    )
)
GGUF_ROPE_KEYS = frozenset(
    (
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "rope.scaling.attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    )
)
# In GGUF: divisors of the frequencies (D/2 of them), of Llama 3 and of LongRoPE.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)


def rope_fields(fields: Fields, layer_type: str | None = None) -> Fields:
    """One table from `rope_scaling`, `rope_parameters` and the fields beside them; where
    `rope_parameters` has a table for each type of layer, that of `layer_type` alone."""
    if layer_type is not None and layer_type in (tables := fields.table("rope_parameters")):
        return rope_fields(Fields(CONFIG, {"rope_parameters": tables[layer_type]}))
    merged: dict[str, Any] = {}
    for place in ("rope_scaling", "rope_parameters"):
        for name, value in fields.table(place).items():
            if isinstance(value, Mapping):
                raise UnsupportedModel(f"{CONFIG}: {place}.{name[:40]}: RoPE by layer type")
            if name not in ROPE_KEYS:
                raise UnsupportedModel(f"{CONFIG}: {place}.{name[:40]} is not understood")
            _put(fields, merged, "rope_type" if name == "type" else name, value)
    for name in ("rope_theta", "original_max_position_embeddings"):
        _put(fields, merged, name, fields.get(name))
    found = Fields(CONFIG, merged)
    if merged.get("partial_rotary_factor") not in (None, 1):
        raise UnsupportedModel(f"{CONFIG}: partial_rotary_factor is set, and is not computed")
    return found


def _put(fields: Fields, merged: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        return
    if name in merged and merged[name] != value:
        raise fields.error(name, "has different values in two places")
    merged[name] = value


def rope_kind(rope_fields: Fields) -> str:
    kind = rope_fields.text("rope_type", "default")
    if kind not in ROPE_KINDS:
        raise UnsupportedModel(f"{CONFIG}: rope_type {kind[:40]!r} is not computed")
    return kind


def from_config(kind: str, fields: Fields, head_size: int, trained: int, context: int) -> RopeSpec:
    theta = fields.number("rope_theta", 1.0, MAX_THETA, 10000.0)
    original = fields.integer("original_max_position_embeddings", 2, MAX_CONTEXT, max(trained, 2))
    match kind:
        case "linear":
            return RopeSpec(kind, rope.linear(theta, head_size, factor_of(fields)))
        case "dynamic":
            if head_size < 4:
                raise fields.error("head_dim", "must be at least 4 for dynamic RoPE")
            frequencies = rope.dynamic(theta, head_size, factor_of(fields), trained, context)
            return RopeSpec(kind, frequencies)
        case "llama3":
            return RopeSpec(kind, _llama3(fields, theta, head_size, original))
        case "yarn":
            return _yarn(fields, theta, head_size, original, trained)
        case "longrope":
            return _longrope(fields, theta, head_size, original, trained, context)
    return RopeSpec(kind, rope.default(theta, head_size))


def factor_of(fields: Fields, default: float | None = None) -> float:
    return fields.number("factor", 1.0, MAX_FACTOR, default)


def _llama3(fields: Fields, theta: float, head_size: int, original: int) -> rope.Frequencies:
    low = fields.number("low_freq_factor", 1e-6, MAX_FACTOR)
    high = fields.number("high_freq_factor", 1e-6, MAX_FACTOR)
    if high <= low:
        raise fields.error("high_freq_factor", "must be above low_freq_factor")
    return rope.llama3(theta, head_size, factor_of(fields), low, high, original)


def _yarn(fields: Fields, theta: float, head_size: int, original: int, trained: int) -> RopeSpec:
    if theta <= 1.0:
        raise fields.error("rope_theta", "must be above 1 for YaRN")
    factor = factor_of(fields, max(trained / original, 1.0))
    given = fields.optional_number("attention_factor", 1e-6, MAX_FACTOR)
    frequencies = rope.yarn(
        theta,
        head_size,
        factor,
        original,
        fields.number("beta_fast", 1e-6, MAX_FACTOR, 32.0),
        fields.number("beta_slow", 1e-6, MAX_FACTOR, 1.0),
        fields.flag("truncate", True),
    )
    mscale = fields.optional_number("mscale", 0.0, MAX_FACTOR)
    mscale_all_dim = fields.optional_number("mscale_all_dim", 0.0, MAX_FACTOR)
    own = rope.yarn_attention_factor(factor, mscale, mscale_all_dim)
    return RopeSpec("yarn", frequencies, own if given is None else given)


def _longrope(
    fields: Fields, theta: float, head_size: int, original: int, trained: int, context: int
) -> RopeSpec:
    short = fields.numbers("short_factor", head_size // 2, 1e-6, MAX_FACTOR)
    long = fields.numbers("long_factor", head_size // 2, 1e-6, MAX_FACTOR)
    factor = factor_of(fields, max(trained / original, 1.0))
    given = fields.optional_number("attention_factor", 1e-6, MAX_FACTOR)
    own = rope.longrope_attention_factor(factor, original)
    frequencies = rope.longrope(theta, head_size, short, long, original, context)
    return RopeSpec("longrope", frequencies, own if given is None else given)


def from_gguf(
    fields: Fields,
    tensor_shapes: Mapping[str, tuple[int, ...]],
    head_size: int,
    trained: int,
    context: int,
    rope_factors: Mapping[str, Sequence[float]],
) -> RopeSpec:
    """`rope_factors` are the values of those of `ROPE_TENSORS` that the file has."""
    for name in ROPE_TENSORS:
        if name in tensor_shapes and name not in rope_factors:
            raise fields.error("rope", f"needs the factors of {name}, which were not given")
    found = _gguf_scaling(fields, head_size, trained)
    if LONG_FACTORS in rope_factors:
        original = fields.integer(
            "rope.scaling.original_context_length", 2, MAX_CONTEXT, max(trained, 2)
        )
        kind, name = "longrope", LONG_FACTORS if context > original else SHORT_FACTORS
    else:
        kind, name = found.kind, ROPE_FACTORS
    if name not in rope_factors:
        return found
    given = Fields(GGUF, {name: list(rope_factors[name])})
    factors = given.numbers(name, head_size // 2, 1e-6, MAX_FACTOR)
    frequencies = rope.divided(found.inverse_frequencies, factors)
    return RopeSpec(kind, frequencies, found.attention_factor)


def _gguf_scaling(fields: Fields, head_size: int, trained: int) -> RopeSpec:
    theta = fields.number("rope.freq_base", 1.0, MAX_THETA, 10000.0)
    kind = fields.text("rope.scaling.type", "none")
    old_factor = fields.number("rope.scale_linear", 1.0, MAX_FACTOR, 1.0)
    factor = fields.number("rope.scaling.factor", 1.0, MAX_FACTOR, old_factor)
    attention = fields.number("rope.scaling.attn_factor", 1e-6, MAX_FACTOR, 1.0)
    if kind == "yarn":
        if theta <= 1.0:
            raise fields.error("rope.freq_base", "must be above 1 for YaRN")
        frequencies = rope.yarn(
            theta,
            head_size,
            factor,
            fields.integer("rope.scaling.original_context_length", 2, MAX_CONTEXT, max(trained, 2)),
            fields.number("rope.scaling.yarn_beta_fast", 1e-6, MAX_FACTOR, 32.0),
            fields.number("rope.scaling.yarn_beta_slow", 1e-6, MAX_FACTOR, 1.0),
        )
        return RopeSpec("yarn", frequencies, attention * rope.yarn_attention_factor(factor))
    if kind not in ("none", "linear"):
        raise UnsupportedModel(
            f"{GGUF}: {fields.prefix}rope.scaling.type {kind[:40]!r} is not computed"
        )
    if kind == "none" and fields.get("rope.scaling.type") is not None:
        factor = 1.0
    name = "linear" if factor != 1.0 else "default"
    return RopeSpec(name, rope.linear(theta, head_size, factor), attention)
