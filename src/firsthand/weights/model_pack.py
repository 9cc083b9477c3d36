"""A model as a ModelPack artifact: a folder in OCI's image layout, which registries take as it is.

Owns: which layer a file becomes, the artifact's config and manifest.
May not know: registries; the model's manifest is the caller's, and its files have been compared.
Read next: `manifest.py`; the specification: github.com/modelpack/model-spec.

    FOLDER/oci-layout, index.json
    FOLDER/blobs/sha256/HASH       every file of the model as it is, its manifest and signature too
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from firsthand.canonical import canonical
from firsthand.errors import BadHash, InvalidRequest
from firsthand.weights.manifest import (
    Manifest,
    files_of,
    manifest_path,
    signature_path,
)
from firsthand.weights.places import write_atomically

ARTIFACT: Final = "application/vnd.cncf.model.manifest.v1+json"
CONFIG: Final = "application/vnd.cncf.model.config.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
FILE_PATH: Final = "org.cncf.model.filepath"
_LAYER: Final = "application/vnd.cncf.model.{}.v1.raw"
_KINDS: Final = {
    **dict.fromkeys((".safetensors", ".gguf", ".bin"), "weight"),
    **dict.fromkeys((".md", ".txt", ".pdf"), "doc"),
    ".py": "code",
}
_BLOCK_BYTES: Final = 1 << 20


def write_model_pack(model: Path, manifest: Manifest, folder: Path) -> str:
    """The digest of the artifact. Raises InvalidRequest for a folder that is not empty, BadHash for
    a file that changed meanwhile."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest("folder", f"{folder} is there already, and not empty")
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    expected = {one.path: one.sha256 for one in manifest.files}
    layers = [_layer(name, path, blobs, expected.get(name)) for name, path in _all_files(model)]
    config = _blob(canonical(_config(manifest, layers)), CONFIG, blobs)
    content = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": config,
        "layers": layers,
        "annotations": {
            "org.opencontainers.image.title": manifest.name,
            "org.opencontainers.image.version": manifest.version,
        },
    }
    artifact = _blob(canonical(content), MANIFEST, blobs) | {
        "artifactType": ARTIFACT,
        "annotations": {"org.opencontainers.image.ref.name": manifest.version},
    }
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [artifact]}
    write_atomically(folder / "index.json", canonical(index))
    write_atomically(folder / "oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
    return str(artifact["digest"])


def _all_files(model: Path) -> Iterator[tuple[str, Path]]:
    yield from files_of(model)
    for path in (manifest_path(model), signature_path(model)):
        if path.exists():
            yield path.name, path


def _layer(name: str, path: Path, blobs: Path, expected: str | None) -> dict[str, Any]:
    """The file's content under its hash, read once."""
    partial, digest = blobs / f".{os.urandom(4).hex()}.partial", hashlib.sha256()
    with open(path, "rb") as source, open(partial, "wb") as target:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            target.write(block)
    sha256 = digest.hexdigest()
    if expected not in (None, sha256):
        partial.unlink()
        raise BadHash(str(path), f"its hash is {sha256}, the manifest says {expected}")
    os.replace(partial, blobs / sha256)
    kind = _KINDS.get(path.suffix, "weight.config")
    return {
        "mediaType": _LAYER.format(kind),
        "digest": f"sha256:{sha256}",
        "size": (blobs / sha256).stat().st_size,
        "annotations": {FILE_PATH: name},
    }


def _blob(content: bytes, kind: str, blobs: Path) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    write_atomically(blobs / sha256, content)
    return {"mediaType": kind, "digest": f"sha256:{sha256}", "size": len(content)}


def _config(manifest: Manifest, layers: list[dict[str, Any]]) -> dict[str, Any]:
    is_gguf = any(one.path.endswith(".gguf") for one in manifest.files)
    found = {"architecture": "transformer", "format": "gguf" if is_gguf else "safetensors"}
    if manifest.quantization is not None:
        found["quantization"] = str(manifest.quantization.get("method", "mixed"))
    return {
        "descriptor": {
            "name": manifest.name,
            "version": manifest.version,
            "createdAt": manifest.created,
            "revision": manifest.sha256,
        },
        "config": found,
        "modelfs": {"type": "layers", "diffIds": [one["digest"] for one in layers]},
    }
