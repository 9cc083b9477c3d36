"""What a tensor is called: every name of a file to its canonical one.

Owns: how a family's table of names is applied, and which tensors nobody needs.
May not know: the tables (each family has its own), shapes, bytes, number formats, executors.
Read next: `loading.py`, which matches a model's slots with a file by these names.

Canonical is the Hugging Face name of the family: `model.layers.3.self_attn.q_proj.weight`. A name
that no rule knows stays as it is, so that the loader refuses it by the name that the file has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from firsthand.models.scaling import ROPE_TENSORS
from firsthand.weights.checkpoint import GgufLayout

# `0` or no leading zero: two spellings of one number would be two tensors for one slot.
_NUMBER = r"(0|[1-9][0-9]{0,5})"
_PARTS = re.compile(r"(.+)\.(weight|bias)", re.ASCII)
_LAYER = re.compile(rf"(?<=\.){_NUMBER}(?=\.)", re.ASCII)
_BARE = re.compile(r"(embed_tokens|layers|norm)\..+", re.ASCII)
# Rotary frequencies that old converters stored: the model computes them from its configuration.
# The factors of newer ones are no slot either; they are read while the spec is made.
_IGNORABLE = re.compile(
    rf"(.+\.)?rotary_emb\.inv_freq|blk\.{_NUMBER}\.attn_rot_embd(\.weight)?"
    rf"|{'|'.join(map(re.escape, ROPE_TENSORS))}",
    re.ASCII,
)


def from_gguf(name: str, layout: GgufLayout) -> str | None:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; None if unknown."""
    return _renamed(name, layout.names)


def to_gguf(name: str, layout: GgufLayout) -> str | None:
    """The inverse of `from_gguf`."""
    return _renamed(name, {ours: gguf for gguf, ours in layout.names.items()})


def _renamed(name: str, table: Mapping[str, str]) -> str | None:
    parts = _PARTS.fullmatch(name)
    if parts is None or "{}" in name:
        return None
    stem, ending = parts.groups()
    layer = _LAYER.search(stem)
    target = table.get(_LAYER.sub("{}", stem, count=1))
    if target is None:
        return None
    return f"{target}.{ending}" if layer is None else f"{target.format(layer[0])}.{ending}"


def canonical_names(names: Iterable[str], gguf_layout: GgufLayout | None) -> dict[str, str]:
    """Each name of a file with its canonical one; `gguf_layout` None: the file is safetensors.

    Two names may share a canonical one: that is the caller's error. Some Hugging Face checkpoints
    hold the inner model alone, without the prefix `model.`. It is added to `embed_tokens.…`,
    `layers.…` and `norm.…` when no name of the file has it; a file that has both keeps its names,
    and the bare ones are then extra.
    """
    listed = list(names)
    if gguf_layout is not None:
        return {name: from_gguf(name, gguf_layout) or name for name in listed}
    if any(name.startswith("model.") for name in listed):
        return {name: name for name in listed}
    return {name: f"model.{name}" if _BARE.fullmatch(name) else name for name in listed}


def is_ignorable(name: str) -> bool:
    """Whether a tensor, by its name in the file, may be left unused."""
    return _IGNORABLE.fullmatch(name) is not None
