"""A model as an OCI image layout: the folder form that registries' tools copy from and to.

Owns: the media types of ModelPack, what of a model becomes a layer, which layers are a model.
May not know: registries (their own tools push and pull a layout), what is inside a weight file.
Read next: `oci_import.py` (the way back); `folder.py` (what a model is). Source: the OCI image
specification 1.1, the CNCF ModelPack specification v1.

    oci-layout   index.json           the manifests, each with a tag
    blobs/sha256/HASH                 manifest, configuration, layers

Each file is a layer of its own, as it is (`raw`): weights are not packed any smaller, and a layer
that two versions share has the same hash. Nothing depends on when it is written, so that the same
model has the same digest wherever it is made. Of a model with a manifest go out the files that it
names, each compared with its hash, the manifest itself, and its signature; of another one the files
that make it a model, and what there is to read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from firsthand.errors import BadHash, CheckpointError, InvalidRequest
from firsthand.files import open_regular, path_inside
from firsthand.values import dataclass
from firsthand.weights.folder import is_model_file
from firsthand.weights.gguf_parts import parts_of
from firsthand.weights.manifest import Manifest, files_of, manifest_path, signature_path
from firsthand.weights.model_names import is_safe_file, shown
from firsthand.weights.open import open_checkpoint
from firsthand.weights.writing import check_new, new_folder, write_new

LAYOUT: Final = "oci-layout"
LAYOUT_VERSION: Final = "1.0.0"
INDEX_FILE: Final = "index.json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
MODEL_TYPE: Final = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.cncf.model.config.v1+json"
PREFIX: Final = "application/vnd.cncf.model."
TAG: Final = "org.opencontainers.image.ref.name"
FILE_PATH: Final = "org.cncf.model.filepath"
TITLE: Final = "org.opencontainers.image.title"  # by which other tools name a file
_DOCUMENTS = ("README", "LICENSE", "NOTICE")
_OURS = "quantization.json"
_BLOCK_BYTES = 1 << 20

Descriptor = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exported:
    """`digest` is that of the manifest, by which registries name it."""

    destination: str
    tag: str
    digest: str
    files: tuple[str, ...]
    num_bytes: int


def export_layout(
    model: Path, dst: Path, tag: str | None = None, manifest: Manifest | None = None
) -> Exported:
    """Write the model at `model`, a folder or a .gguf file, as the new folder `dst`. `tag` None:
    the manifest's version, else latest.

    Raises InvalidRequest for a `dst` that exists or a bad tag, BadHash for a file that is not as
    the manifest says, what opening the model raises.
    """
    check_new(dst)
    tag = tag or (manifest.version if manifest else "latest")
    if not is_safe_file(tag) or "/" in tag or len(tag) > 128:
        raise InvalidRequest("tag", f"{shown(tag)} is no tag")
    words = _words(model, manifest)
    sums = {} if manifest is None else {one.path: one.sha256 for one in manifest.files}
    with new_folder(dst) as partial:
        blobs = partial / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        found = sorted(_files_of(model) if manifest is None else _files_with(model))
        layers = [_layer(blobs, path, name, sums.get(name)) for name, path in found]
        hashes = [layer["digest"] for layer in layers]
        config = words | {"modelfs": {"type": "layers", "diffIds": hashes}}
        artifact = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": MODEL_TYPE,
            "config": _json_blob(blobs, config, CONFIG_TYPE),
            "layers": layers,
        }
        top = _json_blob(blobs, artifact, MANIFEST_TYPE)
        top |= {"artifactType": MODEL_TYPE, "annotations": {TAG: tag}}
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [top]}
        write_new(partial / LAYOUT, [_json({"imageLayoutVersion": LAYOUT_VERSION})])
        write_new(partial / INDEX_FILE, [_json(index)])
    names = tuple(layer["annotations"][FILE_PATH] for layer in layers)
    size = sum(layer["size"] for layer in layers)
    return Exported(str(dst), tag, top["digest"], names, size)


def _words(model: Path, manifest: Manifest | None) -> dict[str, Any]:
    """What is said of the model. It is opened, so that only a whole one goes out."""
    with closing(open_checkpoint(model)) as checkpoint:
        config, metadata = checkpoint.config, checkpoint.metadata
        family = config.get("model_type") or metadata.get("general.architecture")
        quantised = config.get("quantization_config")
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        technical = {"architecture": "transformer", "format": checkpoint.form}
        if isinstance(method, str):
            technical["quantization"] = method
    descriptor = {"name": model.name}
    if isinstance(family, str):
        descriptor["family"] = family
    if manifest is not None:
        descriptor |= {
            "name": manifest.name,
            "version": manifest.version,
            "createdAt": manifest.created,
            "revision": manifest.sha256,
        }
    return {"descriptor": descriptor, "config": technical}


def _files_with(model: Path) -> Iterator[tuple[str, Path]]:
    """All that its manifest names, and what says so."""
    yield from files_of(model)
    for path in (manifest_path(model), signature_path(model)):
        if path.exists():
            yield path.name, path


def _files_of(model: Path) -> Iterator[tuple[str, Path]]:
    if not model.is_dir():
        yield from ((part.name, part) for part in parts_of(model))
        return
    for name in os.listdir(model):
        if is_model_file(name) or name == _OURS or name.startswith(_DOCUMENTS):
            yield name, path_inside(model, name)


def _kind(name: str) -> str:
    if name.endswith((".safetensors", ".gguf")):
        return "weight"
    if name.endswith(".py"):
        return "code"
    return "doc" if name.startswith(_DOCUMENTS) or name.endswith(".md") else "weight.config"


def _layer(blobs: Path, path: Path, name: str, expected: str | None) -> Descriptor:
    if not is_safe_file(name):
        raise CheckpointError(str(path), "has a name that no layer can have")
    descriptor, _ = open_regular(path)
    with open(descriptor, "rb") as source:
        found = _blob(blobs, iter(lambda: source.read(_BLOCK_BYTES), b""))
    sha256 = found["digest"].removeprefix("sha256:")
    if expected not in (None, sha256):
        raise BadHash(str(path), f"its hash is {sha256}, the manifest says {expected}")
    where = {FILE_PATH: name, TITLE: name}
    return {"mediaType": f"{PREFIX}{_kind(name)}.v1.raw", **found, "annotations": where}


def _json_blob(blobs: Path, value: Mapping[str, Any], kind: str) -> Descriptor:
    return {"mediaType": kind, **_blob(blobs, [_json(value)])}


def _blob(blobs: Path, chunks: Iterable[bytes]) -> Descriptor:
    """Copied and hashed in one go; the name is the hash."""
    digest, size = hashlib.sha256(), 0
    partial = blobs / ".partial"

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    write_new(partial, hashed())
    partial.rename(blobs / digest.hexdigest())
    return {"digest": f"sha256:{digest.hexdigest()}", "size": size}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1).encode("ascii")
