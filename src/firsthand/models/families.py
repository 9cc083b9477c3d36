"""Which architecture is computed by which file: one row each.

Owns: the table. A new family is one file beside this one and one row here.
May not know: how a spec came to be, who executes the program.
Read next: `llama.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from firsthand.compute.executor import ModelProgram
from firsthand.errors import InvalidRequest, UnsupportedModel
from firsthand.models import gemma2, gemma3, llama, mistral, mixtral, phi3, qwen2, qwen3, qwen_moe
from firsthand.models.config_form import known_architecture, spec_from_config
from firsthand.models.family import Family
from firsthand.models.fields import GGUF, Fields
from firsthand.models.gguf_form import spec_from_gguf
from firsthand.models.spec import ModelSpec
from firsthand.named import find_named
from firsthand.weights.checkpoint import Slot

FAMILIES = MappingProxyType(
    {
        "llama": llama.FAMILY,
        "mistral": mistral.FAMILY,
        "qwen2": qwen2.FAMILY,
        "qwen3": qwen3.FAMILY,
        "gemma2": gemma2.FAMILY,
        "gemma3_text": gemma3.FAMILY,
        "phi3": phi3.FAMILY,
        "mixtral": mixtral.FAMILY,
        "qwen2_moe": qwen_moe.QWEN2_MOE,
        "qwen3_moe": qwen_moe.QWEN3_MOE,
    }
)


def read_config(
    config: Mapping[str, Any], max_context: int | None = None, own: str | None = None
) -> ModelSpec:
    """The spec of a config.json, if its architecture has a row. `own` is one row more, by its name
    (`file.py:NAME`), before the others. Raises as `spec_from_config`."""
    table = FAMILIES if own is None else FAMILIES | {own: own_family(own)}
    architectures = {row.config_name: name for name, row in table.items()}
    readings = {name: row.config for name, row in table.items()}
    return spec_from_config(config, architectures, max_context, readings)


def read_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    max_context: int | None = None,
    rope_factors: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> ModelSpec:
    """The spec of a GGUF file, if its architecture has a row. Raises as `spec_from_gguf`."""
    written = Fields(GGUF, metadata).text("general.architecture")
    has_experts = bool(metadata.get(f"{written}.expert_count"))
    named = {row.gguf_name: name for name, row in FAMILIES.items() if row.gguf_name is not None}
    with_experts = {row.gguf_name: name for name, row in FAMILIES.items() if row.has_experts}
    plain = {row.gguf_name: name for name, row in FAMILIES.items() if not row.has_experts}
    name = known_architecture(written, {key: key for key in named})
    chosen = (with_experts if has_experts else plain).get(name, named[name])
    reading = FAMILIES[chosen].gguf
    return spec_from_gguf(metadata, tensor_shapes, chosen, max_context, rope_factors, reading)


def slots(spec: ModelSpec) -> tuple[Slot, ...]:
    """The tensors that the spec's model asks a checkpoint for."""
    return family(spec).slots(spec)


def program(spec: ModelSpec) -> ModelProgram:
    """The spec's model as an executor needs it."""
    return ModelProgram(
        forward=partial(family(spec).forward, spec=spec),
        vocab_size=spec.vocab_size,
        width=spec.width,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        ropes=(spec.rope,) if spec.local_rope is None else (spec.rope, spec.local_rope),
        context_length=spec.context_length,
    )


def family(spec: ModelSpec) -> Family:
    """Raises UnsupportedModel when no row has the spec's architecture."""
    if ":" in spec.architecture:
        return own_family(spec.architecture)
    if spec.architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(
            f"architecture {spec.architecture!r} is not computed; these: {known}"
        )
    return FAMILIES[spec.architecture]


def own_family(name: str) -> Family:
    """What a user wrote and named. Raises InvalidRequest."""
    found = find_named("family", name)
    if not isinstance(found, Family):
        raise InvalidRequest("family", f"{name[:80]!r} is no firsthand.models.family.Family")
    return found
