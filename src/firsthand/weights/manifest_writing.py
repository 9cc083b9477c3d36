"""A manifest is made of a model as it lies there.

Owns: which files get into it, what is refused, and what is found beside the model by itself.
May not know: what the training was; the caller hands that over.
Read next: `manifest.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object, read_whole
from firsthand.values import dataclass
from firsthand.version import VERSION
from firsthand.weights.gguf_parts import title
from firsthand.weights.manifest import (
    EMPTY,
    MAX_BYTES,
    MAX_ITEMS,
    UNFINISHED,
    Manifest,
    ManifestFile,
    files_of,
    manifest_path,
)
from firsthand.weights.places import write_atomically
from firsthand.weights.sums import Sums

QUANTIZATION_FILE: Final = "quantization.json"  # what `quantize` measured
_WEIGHTS: Final = (".safetensors", ".gguf")


@dataclass(frozen=True, slots=True)
class Told:
    """What only the model's maker knows."""

    name: str | None = None
    version: str = "1"
    data_hash: str | None = None
    contract_hash: str | None = None
    config_hash: str | None = None
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] | None = None
    parents: tuple[str, ...] = ()


def make_manifest(model: Path, told: Told, sums: Sums) -> Manifest:
    """Read every file of the model. Raises CheckpointError for an empty or unfinished one."""
    files = tuple(_file(name, path, sums) for name, path in files_of(model))
    if not any(one.path.endswith(_WEIGHTS) for one in files):
        raise CheckpointError(str(model), "has no weights: no .safetensors and no .gguf file")
    return Manifest(
        name=told.name or title(model.resolve().name),
        version=told.version,
        files=files,
        engine_version=VERSION,
        created=_last_changed(model),
        data={"hash": told.data_hash, "contract_hash": told.contract_hash},
        config_hash=told.config_hash,
        quantization=_quantization(model),
        parents=told.parents,
        hyper_parameters=told.hyper_parameters,
        evaluation=told.evaluation,
    )


def write_manifest(model: Path, manifest: Manifest) -> Path:
    """Put it beside the model. Raises OSError."""
    path = manifest_path(model)
    write_atomically(path, manifest.content())
    return path


def _last_changed(model: Path) -> str:
    """When the youngest file was written: the same model has the same manifest whenever it is
    made."""
    last_s = max(int(path.stat().st_mtime) for _, path in files_of(model))
    return datetime.fromtimestamp(last_s, UTC).isoformat().replace("+00:00", "Z")


def _file(name: str, path: Path, sums: Sums) -> ManifestFile:
    size = path.stat().st_size
    if name.endswith(UNFINISHED):
        raise CheckpointError(str(path), "is an unfinished file; a manifest names whole ones")
    if name.endswith(_WEIGHTS) and not size:
        raise CheckpointError(str(path), f"is empty; {EMPTY} is the hash of nothing")
    return ManifestFile(name, size, sums.of(path))


def _quantization(model: Path) -> dict[str, Any] | None:
    path = model / QUANTIZATION_FILE
    if not path.is_file():
        return None
    return parse_json_object(read_whole(path, MAX_BYTES), str(path), MAX_ITEMS)
