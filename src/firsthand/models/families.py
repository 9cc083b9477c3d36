"""Which architecture is computed by which file: one row each.

Owns: the table. A new family is one file beside this one and one row here.
May not know: how a spec came to be, who executes the program.
Read next: `llama.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from firsthand.compute.executor import ModelProgram
from firsthand.errors import UnsupportedModel
from firsthand.models import llama
from firsthand.models.spec import ModelSpec, spec_from_config, spec_from_gguf
from firsthand.weights.checkpoint import GgufLayout, Slot


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: what files call it, what they hold, and what is computed.

    `slots(spec)` are the tensors that `forward(ops, spec)` names.
    """

    config_name: str  # the entry of `architectures` in config.json
    gguf_name: str  # the value of `general.architecture` in GGUF
    gguf_layout: GgufLayout
    slots: Callable[[ModelSpec], tuple[Slot, ...]]
    forward: Callable[..., Any]


FAMILIES = MappingProxyType(
    {
        "llama": Family(
            config_name="LlamaForCausalLM",
            gguf_name="llama",
            gguf_layout=llama.GGUF_LAYOUT,
            slots=llama.slots,
            forward=llama.forward,
        )
    }
)


def read_config(config: Mapping[str, Any], max_context: int | None = None) -> ModelSpec:
    """The spec of a config.json, if its architecture has a row. Raises as `spec_from_config`."""
    architectures = {row.config_name: name for name, row in FAMILIES.items()}
    return spec_from_config(config, architectures, max_context)


def read_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    max_context: int | None = None,
    rope_factors: Sequence[float] | None = None,
) -> ModelSpec:
    """The spec of a GGUF file, if its architecture has a row. Raises as `spec_from_gguf`."""
    architectures = {row.gguf_name: name for name, row in FAMILIES.items()}
    return spec_from_gguf(metadata, tensor_shapes, architectures, max_context, rope_factors)


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
        inverse_frequencies=spec.rope.inverse_frequencies,
        attention_factor=spec.rope.attention_factor,
        context_length=spec.context_length,
    )


def family(spec: ModelSpec) -> Family:
    """Raises UnsupportedModel when no row has the spec's architecture."""
    if spec.architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(
            f"architecture {spec.architecture!r} is not computed; these: {known}"
        )
    return FAMILIES[spec.architecture]
