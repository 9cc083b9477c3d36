"""What makes a folder a model: which files are its weights, and which belong beside them.

Owns: the names of those files, what to open in a folder, and whether it is complete.
May not know: caches, networks, what is inside a weight file (only an index's list of shards).
Read next: `file_index.py` (the index); `catalogue.py` and `hub.py` (who asks).

An index says which files are the weights; without one it is `model.safetensors`; without that,
the folder's one .gguf file, or the parts of one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from firsthand.errors import CheckpointError, InvalidRequest, ModelNotFound, UnsupportedModel
from firsthand.weights.file_index import read_index
from firsthand.weights.gguf_parts import first_part, first_parts, part_names, parts_of

Form = Literal["safetensors", "gguf"]
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
LEGACY_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_COMPANIONS = (
    CONFIG,
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def is_companion(name: str) -> bool:
    """Whether a model's folder needs the file beside its weights."""
    return name in _COMPANIONS or (
        name.startswith("tokenizer") and name.endswith((".json", ".model"))
    )


def is_model_file(name: str) -> bool:
    return is_companion(name) or name.endswith((".safetensors", ".gguf")) or name == INDEX


def safetensors_entry(names: Collection[str]) -> str | None:
    """Of the files of a folder, the one that is the weights or says where they are."""
    return next((name for name in (INDEX, WEIGHTS) if name in names), None)


def model_in(folder: Path, file: str | None = None) -> Path:
    """What to open in `folder`: itself (safetensors), or its one .gguf file, or the `file` asked.

    The model is complete: every shard that an index names is there, and every part of a .gguf
    file, of which the path is the first's.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise ModelNotFound(f"{folder} cannot be listed: {error.strerror}") from error
    ggufs = first_parts(name for name in names if name.endswith(".gguf"))
    if file is not None:
        if not (folder / file).is_file():
            raise ModelNotFound(f"no {file} in {folder}; {_what_is_in(ggufs)}")
        return whole_file(folder / file)
    entry = safetensors_entry(names)
    if entry is None and len(ggufs) > 1:
        raise InvalidRequest("model", f"{folder} has several .gguf files: {_listed(ggufs)}")
    # A link whose blob is gone is a file that an interrupted download left behind.
    found = [entry] if entry is not None else [part for one in ggufs for part in part_names(one)]
    missing = [name for name in found if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(str(folder), f"incomplete: missing {missing[0]}")
    if entry == INDEX:
        read_index(folder, INDEX, ".safetensors")
    if found:
        return folder if entry is not None else folder / ggufs[0]
    legacy = [name for name in names if name.endswith(LEGACY_SUFFIXES)]
    if legacy:
        raise UnsupportedModel(convert_first(str(folder), legacy))
    inside = "; there is one in {folder}/model" if (folder / "model").is_dir() else ""
    raise ModelNotFound(f"no model in {folder}: {_what_is_in(ggufs)}{inside.format(folder=folder)}")


def whole_file(path: Path) -> Path:
    """The first of the parts of the .gguf file, of which `path` is one. Raises CheckpointError."""
    for part in parts_of(path):
        if not part.is_file():
            raise CheckpointError(str(path.parent), f"incomplete: missing {part.name}")
    return path.with_name(first_part(path.name))


def form_of(path: Path) -> Form:
    """Of what `model_in` found."""
    return "safetensors" if path.is_dir() else "gguf"


def convert_first(where: str, legacy: Sequence[str]) -> str:
    return (
        f"{where} has only {_listed(legacy)}: a form that can run code when it is read. "
        "Get the files, then `firsthand convert FOLDER NEW_FOLDER` writes safetensors from them"
    )


def _what_is_in(ggufs: Sequence[str]) -> str:
    return f"it has {_listed(ggufs)}" if ggufs else f"no {WEIGHTS}, no {INDEX}, no .gguf file"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(name[:100] for name in names[:12]) + more
