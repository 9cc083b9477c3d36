"""An OCI image layout that holds a model becomes a model's folder. Every blob is checked first.

Owns: which manifest is meant, what a layer becomes, every rule it must keep.
May not know: registries, what is inside a weight file.
Read next: `oci.py` (the form), `tar_stream.py`.

Hostile until proven otherwise: each blob is as long as it is said to be and has the hash that it is
called by before a byte of it counts; each file has a plain name, once; nothing but regular files
comes out of an archive, and no more of them than the disk holds. Layers of code are never written.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from firsthand.checks import is_integer
from firsthand.errors import CapacityExceeded, CheckpointError, InvalidRequest, UnsupportedModel
from firsthand.files import open_regular, parse_json_object, read_whole
from firsthand.values import dataclass
from firsthand.weights.folder import model_in
from firsthand.weights.model_names import is_safe_file, is_sha256, shown
from firsthand.weights.oci import (
    CONFIG_TYPE,
    FILE_PATH,
    INDEX_FILE,
    LAYOUT,
    LAYOUT_VERSION,
    MANIFEST_TYPE,
    MODEL_TYPE,
    PREFIX,
    TAG,
    TITLE,
    Descriptor,
)
from firsthand.weights.tar_stream import members
from firsthand.weights.writing import check_new, new_folder, write_new

MAX_JSON_BYTES: Final = 4 << 20
MAX_JSON_ITEMS: Final = 100_000
MAX_FILES: Final = 10_000
SPARE_DISK_BYTES: Final = 1 << 28
_KINDS = {"weight": True, "weight.config": True, "doc": True, "code": False, "dataset": False}
_LAYER = re.compile(re.escape(PREFIX) + r"([a-z.]+)\.v1\.(raw|tar|tar\+gzip)")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Imported:
    """`skipped` are what was not written: kinds of layers, and hidden files."""

    destination: str
    digest: str
    files: tuple[str, ...]
    skipped: tuple[str, ...]
    num_bytes: int


def import_layout(source: Path, dst: Path, tag: str | None = None) -> Imported:
    """Write the model that the layout `source` holds as the new folder `dst`.

    Raises InvalidRequest for a `dst` that exists, or where several models are there and `tag` names
    none of them; CheckpointError for what is not as it says; UnsupportedModel for another artifact.
    """
    check_new(dst)
    layout = _object(source / LAYOUT)
    if layout.get("imageLayoutVersion") != LAYOUT_VERSION:
        raise UnsupportedModel(f"{source}: only layouts of version {LAYOUT_VERSION} are read")
    top = _chosen(source, tag)
    manifest = _manifest(source, top)
    with new_folder(dst) as partial:
        taken = _Taken(partial)
        for layer in manifest:
            _take(source, layer, taken)
        model_in(partial)
    skipped = tuple(sorted(taken.skipped))
    return Imported(str(dst), top["digest"], tuple(taken.names), skipped, taken.num_bytes)


class _Taken:
    """What has been written so far, into one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: list[str] = []
        self.skipped: set[str] = set()
        self.num_bytes = 0

    def write(self, name: str, num_bytes: int, chunks: Iterable[bytes], where: str) -> None:
        plain = name.removeprefix("./")
        if any(part[:1] == "." and is_safe_file(part[1:]) for part in plain.split("/")):
            self.skipped.add(plain)
            return
        if not is_safe_file(plain) or plain in self.names or len(self.names) == MAX_FILES:
            raise CheckpointError(where, f"{shown(name)} is no file of a model, or there twice")
        if shutil.disk_usage(self._folder).free < num_bytes + SPARE_DISK_BYTES:
            raise CapacityExceeded(f"{where}: no room for {num_bytes} bytes on this disk")
        path = self._folder / plain
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, chunks)
        self.names.append(plain)
        self.num_bytes += num_bytes


def _chosen(source: Path, tag: str | None) -> Descriptor:
    """The descriptor of the manifest that `tag` names, or of the only one."""
    found = {}
    index = _object(source / INDEX_FILE)
    for one in _list(index, "manifests", source / INDEX_FILE):
        notes = one.get("annotations")
        name = notes.get(TAG) if isinstance(notes, dict) else None
        found[name if isinstance(name, str) else one.get("digest")] = one
    if tag is None and len(found) == 1:
        return next(iter(found.values()))
    if tag not in found:
        names = ", ".join(map(shown, list(map(str, found))[:20])) or "nothing"
        raise InvalidRequest("tag", f"{source} holds {names}; name one of them")
    return found[tag]


def _manifest(source: Path, top: Descriptor) -> list[Descriptor]:
    """The layers of the manifest."""
    if top.get("mediaType") != MANIFEST_TYPE:
        raise UnsupportedModel(f"{source}: {shown(str(top.get('mediaType')))} is no image manifest")
    path = _checked_blob(source, top)
    manifest = _object(path)
    config = manifest.get("config")
    if not isinstance(config, dict):
        raise CheckpointError(str(path), "config is no descriptor")
    if manifest.get("artifactType") != MODEL_TYPE and config.get("mediaType") != CONFIG_TYPE:
        kind = manifest.get("artifactType") or config.get("mediaType")
        raise UnsupportedModel(f"{source} holds {shown(str(kind))}, which is no ModelPack model")
    _checked_blob(source, config)
    return _list(manifest, "layers", path)


def _take(source: Path, layer: Descriptor, taken: _Taken) -> None:
    kind = str(layer.get("mediaType"))
    form = _LAYER.fullmatch(kind)
    if form is None or form[1] not in _KINDS:
        raise UnsupportedModel(f"{source}: a layer of {shown(kind)} is not read")
    if not _KINDS[form[1]]:
        taken.skipped.add(form[1])
        return
    path = _checked_blob(source, layer)
    with open(path, "rb") as stream:
        if form[2] == "raw":
            name = _file_name(layer, path)
            chunks = iter(lambda: stream.read(_BLOCK_BYTES), b"")
            taken.write(name, layer["size"], chunks, str(path))
            return
        archive = cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if "gzip" in form[2] else stream
        try:
            for member in members(archive, str(path)):
                taken.write(member.name, member.num_bytes, member.chunks, str(path))
        except (zlib.error, EOFError, gzip.BadGzipFile) as error:
            raise CheckpointError(str(path), "is no gzip stream, or is cut") from error


def _file_name(layer: Descriptor, path: Path) -> str:
    notes = layer.get("annotations")
    for key in (FILE_PATH, TITLE):
        if isinstance(notes, dict) and isinstance(notes.get(key), str):
            return str(notes[key])
    raise CheckpointError(str(path), f"a layer without {FILE_PATH}")


def _checked_blob(source: Path, descriptor: Descriptor) -> Path:
    """Where the blob lies, read whole once."""
    algorithm, _, digest = str(descriptor.get("digest")).partition(":")
    size = descriptor.get("size")
    if algorithm != "sha256" or not is_sha256(digest) or not is_integer(size) or size < 0:
        raise CheckpointError(str(source), f"{shown(str(descriptor.get('digest')))}: no descriptor")
    path = source / "blobs" / "sha256" / digest
    handle, found = open_regular(path)
    with open(handle, "rb") as stream:
        if found != size:
            raise CheckpointError(str(path), f"has {found} bytes, and should have {size}")
        actual = hashlib.file_digest(stream, "sha256").hexdigest()
    if actual != digest:
        raise CheckpointError(str(path), f"has the hash {actual}")
    return path


def _object(path: Path) -> dict[str, Any]:
    return parse_json_object(read_whole(path, MAX_JSON_BYTES), str(path), MAX_JSON_ITEMS)


def _list(value: dict[str, Any], key: str, path: Path) -> list[Descriptor]:
    found = value.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise CheckpointError(str(path), f"{key} is no list of descriptors")
    return found
