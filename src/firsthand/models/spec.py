"""What a model is, in the form we use.

Owns: `ModelSpec`, and what a family says of the way from a file's words to it.
May not know: tensors, arrays, executors. Standard library only.
Read next: `config_form.py` and `gguf_form.py` (the two forms of a file's words), then `llama.py`
(the mathematics).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any

from firsthand.models.fields import Fields
from firsthand.models.rope import RopeSpec as RopeSpec
from firsthand.values import dataclass

MAX_VOCAB = 2**24
MAX_LAYERS = 2**12
MAX_WIDTH = 2**20
MAX_FFN_WIDTH = 2**22
MAX_HEADS = 2**12
MAX_HEAD_SIZE = 2**12
MAX_EXPERTS = 2**10


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """The experts of a layer that has some.

    `renormalise`: the weights of the chosen ones are divided by their sum. A row has `top_k` of
    them, and the shared one besides if there is one.
    """

    num_experts: int
    top_k: int
    width: int  # F of each
    renormalise: bool
    shared_width: int = 0  # F of the shared expert; 0: there is none
    dense_layers: frozenset[int] = frozenset()  # that have one feed-forward, and no experts


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
    windows: tuple[int | None, ...] = ()  # per layer: a row sees so many positions; (): all, all
    local_rope: RopeSpec | None = None  # of the layers with a window, where it is another
    attention_scale: float | None = None  # None: 1 / sqrt(D)
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    experts: ExpertsSpec | None = None

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_size

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense_layers


@dataclass(frozen=True, slots=True)
class Words:
    """What a file says, for a family that reads more of it than all do.

    `tensor_shapes` is empty for a config.json, whose tensors are another file's.
    """

    fields: Fields
    trained_context: int
    tensor_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def as_it_is(words: Words, spec: ModelSpec) -> ModelSpec:
    """Of a family that needs nothing but what all have in common."""
    return spec


@dataclass(frozen=True, slots=True)
class Reading:
    """How one family reads one form of a file.

    `options` are names that `refine` reads and that are refused in other families, but for values
    that change nothing (`config_form.NEUTRAL`); `defaults` stand for what a file leaves out.
    `refine` gets the spec as all families have it.
    """

    options: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    refine: Callable[[Words, ModelSpec], ModelSpec] = as_it_is


PLAIN = Reading()


def windows_by_type(
    fields: Fields, num_layers: int, window: int | None, slides: Sequence[bool]
) -> tuple[int | None, ...]:
    """The window of each layer: where `layer_types` says so, or else `slides`. () without one."""
    if not window:
        return ()
    types = fields.get("layer_types")
    if types is not None:
        known = {"sliding_attention": True, "full_attention": False}
        if not isinstance(types, list) or len(types) != num_layers or {*types} - {*known}:
            raise fields.error(
                "layer_types", f"must be {num_layers} times one of {', '.join(known)}"
            )
        slides = [known[name] for name in types]
    return tuple(window if slide else None for slide in slides) if any(slides) else ()


def check_heads(fields: Fields, name: str, num_heads: int, num_kv_heads: int) -> None:
    if num_heads % num_kv_heads:
        raise fields.error(name, f"{num_heads} is no multiple of {num_kv_heads} key/value heads")


def check_even(fields: Fields, name: str, head_size: int) -> None:
    if head_size % 2:
        raise fields.error(name, f"{head_size} is odd, and RoPE turns pairs")
