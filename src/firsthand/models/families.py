"""Which architecture is computed by which file: one row each.

Owns: the table. A new family is one file beside this one and one row here.
May not know: how a spec came to be, who executes the program.
Read next: `llama.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from firsthand.compute.executor import ModelProgram
from firsthand.errors import UnsupportedModel
from firsthand.models import llama
from firsthand.models.spec import ModelSpec
from firsthand.weights.checkpoint import Slot


@dataclass(frozen=True, slots=True)
class Family:
    """`slots(spec)` are the tensors that `forward(ops, spec)` names."""

    slots: Callable[[ModelSpec], tuple[Slot, ...]]
    forward: Callable[..., Any]


FAMILIES = MappingProxyType({"llama": Family(llama.slots, llama.forward)})


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
