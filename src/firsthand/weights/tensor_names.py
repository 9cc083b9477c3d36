"""Names of tensors: every file form's words for what the house calls by its Hugging Face name.

Owns: the table between GGUF names and canonical names, and which tensors nobody needs.
May not know: shapes, bytes, number formats, executors.
Read next: `loading.py`, which matches a model's slots with a file by these names.

Canonical is the Hugging Face name of the llama family: `model.layers.3.self_attn.q_proj.weight`.
Source of the GGUF side: the `gguf` package, `constants.py`. A name that no rule knows stays as it
is, so that the loader refuses it by the name that the file has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

# Divisors of the rotary frequencies (D/2 of them) in GGUF files of Llama 3.1 and later. A model
# reads it by this name while its spec is made; it is no slot of the model.
ROPE_FREQUENCIES: Final = "rope_freqs.weight"

_TOP: Mapping[str, str] = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    }
)
_IN_BLOCK: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)

# `0` or no leading zero: two spellings of one number would be two tensors for one slot.
_NUMBER = r"(0|[1-9][0-9]{0,5})"
_GGUF = re.compile(rf"(?:blk\.{_NUMBER}\.)?([a-z_]+)\.(weight|bias)", re.ASCII)
_CANONICAL = re.compile(rf"(?:model\.layers\.{_NUMBER}\.)?([a-z_.]+)\.(weight|bias)", re.ASCII)
_BARE = re.compile(r"(embed_tokens|layers|norm)\..+", re.ASCII)
# Rotary frequencies that old converters stored: the model computes them from its configuration.
_IGNORABLE = re.compile(
    rf"(.+\.)?rotary_emb\.inv_freq|blk\.{_NUMBER}\.attn_rot_embd(\.weight)?|rope_freqs\.weight",
    re.ASCII,
)


def from_gguf(name: str) -> str | None:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; None if unknown."""
    found = _GGUF.fullmatch(name)
    if found is None:
        return None
    layer, stem, part = found.groups()
    if layer is None:
        return f"{_TOP[stem]}.{part}" if stem in _TOP else None
    return f"model.layers.{layer}.{_IN_BLOCK[stem]}.{part}" if stem in _IN_BLOCK else None


def to_gguf(name: str) -> str | None:
    """The inverse of `from_gguf`."""
    found = _CANONICAL.fullmatch(name)
    if found is None:
        return None
    layer, stem, part = found.groups()
    table = _TOP if layer is None else _IN_BLOCK
    for gguf, canonical in table.items():
        if canonical == stem:
            return f"{gguf}.{part}" if layer is None else f"blk.{layer}.{gguf}.{part}"
    return None


def canonical_names(names: Iterable[str], form: Literal["safetensors", "gguf"]) -> dict[str, str]:
    """Each name of a file with its canonical one. Two may share one: that is the caller's error.

    Some Hugging Face checkpoints hold the inner model alone, without the prefix `model.`. It is
    added to `embed_tokens.…`, `layers.…` and `norm.…` when no name of the file has it; a file
    that has both keeps its names, and the bare ones are then extra.
    """
    listed = list(names)
    if form == "gguf":
        return {name: from_gguf(name) or name for name in listed}
    if any(name.startswith("model.") for name in listed):
        return {name: name for name in listed}
    return {name: f"model.{name}" if _BARE.fullmatch(name) else name for name in listed}


def is_ignorable(name: str) -> bool:
    """Whether a tensor, by its name in the file, may be left unused."""
    return _IGNORABLE.fullmatch(name) is not None
