"""A model's manifest: which files it is, by their hashes, and what it was made of.

Owns: the form of `manifest.json`, where it lies, what it is called by its hash.
May not know: whether the files are as it says (`verifying.py`), what is done with a model.
Read next: `verifying.py`.
Seen in: `firsthand lab near-names`.

    FOLDER/manifest.json         of a folder: every file in it but hidden ones, this, its signature
    FILE.gguf.manifest.json      of one file, or of its parts, beside the first

It is canonical JSON and holds the hash of its own rest, so that one bit that changed is seen. A
file of that name that is not one of ours is left alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from firsthand.canonical import canonical
from firsthand.checks import is_integer
from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object, path_inside, read_whole
from firsthand.values import dataclass
from firsthand.weights.gguf_parts import parts_of

NAME: Final = "manifest.json"
SIGNATURE: Final = ".dsse"  # of a manifest, behind its own name
SCHEMA_VERSION: Final = 1
EMPTY: Final = hashlib.sha256(b"").hexdigest()
MAX_BYTES: Final = 8 << 20
MAX_ITEMS: Final = 200_000
UNFINISHED: Final = (".part", ".partial", ".incomplete", ".tmp")
_OWN_HASH: Final = "manifest_sha256"
_MARKS: Final = (b'"schema_version"', b'"sha256_root"', b'"manifest_sha256"')


@dataclass(frozen=True, slots=True)
class ManifestFile:
    path: str  # inside the folder, with /
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """`data` holds the hash of the training data and of its contract, `config_hash` is that of the
    training configuration. All that is not known is None or empty."""

    name: str
    version: str
    files: tuple[ManifestFile, ...]
    engine_version: str
    created: str  # RFC 3339: when the model was
    data: Mapping[str, Any] = field(default_factory=lambda: {"hash": None, "contract_hash": None})
    config_hash: str | None = None
    quantization: Mapping[str, Any] | None = None
    parents: tuple[str, ...] = ()
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] | None = None

    @property
    def sha256_root(self) -> str:
        """Of the files alone, whatever their order."""
        lines = sorted(f"{one.sha256}  {one.path}\n" for one in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def sha256(self) -> str:
        """By which the model is called: of all that is said here."""
        return hashlib.sha256(canonical(self._rest())).hexdigest()

    def content(self) -> bytes:
        return canonical(self._rest() | {_OWN_HASH: self.sha256})

    def _rest(self) -> dict[str, Any]:
        files = [{"path": one.path, "size": one.size, "sha256": one.sha256} for one in self.files]
        return {
            "schema_version": SCHEMA_VERSION,
            "model": {
                "name": self.name,
                "version": self.version,
                "sha256_root": self.sha256_root,
                "files": files,
            },
            "data": self.data,
            "config_hash": self.config_hash,
            "engine_version": self.engine_version,
            "quantization": self.quantization,
            "created": self.created,
            "parents": list(self.parents),
            "hyper_parameters": self.hyper_parameters,
            "evaluation": self.evaluation,
        }


def manifest_path(model: Path) -> Path:
    return model / NAME if model.is_dir() else model.with_name(f"{model.name}.{NAME}")


def signature_path(model: Path) -> Path:
    path = manifest_path(model)
    return path.with_name(path.name + SIGNATURE)


def files_of(model: Path) -> Iterator[tuple[str, Path]]:
    """The files that belong to a model, by their names in it, in order. Raises CheckpointError for
    a link that leads out of it, or nowhere, and a name that is no text."""
    if not model.is_dir():
        yield from ((_checked(part).name, part) for part in parts_of(model))
        return
    for folder, inner, names in os.walk(model):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in inner:
            if Path(folder, name).is_symlink():
                message = "is a link to a folder; a model's folders are its own"
                raise CheckpointError(str(Path(folder, name)), message)
        for name in sorted(names):
            path = _checked(Path(folder, name), inside=True)
            inside = path.relative_to(model).as_posix()
            if not name.startswith(".") and inside not in (NAME, NAME + SIGNATURE):
                yield inside, path


def _checked(path: Path, *, inside: bool = False) -> Path:
    """`inside`: a link may not lead out of its folder."""
    try:
        path.name.encode("utf-8")
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise CheckpointError(shown, "has a name that is not UTF-8") from None
    if inside and path.is_symlink():
        path_inside(path.parent, path.name)
    if not path.exists():
        raise CheckpointError(str(path), "is a link that leads nowhere")
    return path


def read_manifest(model: Path) -> Manifest | None:
    """None: it has none. Raises CheckpointError for one that is not as it was written."""
    path = manifest_path(model)
    if not path.exists():
        return None
    content = read_whole(path, MAX_BYTES)
    if not any(mark in content for mark in _MARKS):
        return None
    found = parse_json_object(content, str(path), MAX_ITEMS)
    said = found.pop(_OWN_HASH, None)
    actual = hashlib.sha256(canonical(found)).hexdigest()
    if said != actual:
        message = f"is not as it was written: its hash is {actual}, it says {str(said)[:64]}"
        raise CheckpointError(str(path), message)
    manifest = _parsed(found, str(path))
    if manifest.content() != content:
        raise CheckpointError(str(path), "is not in the form of schema_version 1")
    return manifest


def _parsed(found: dict[str, Any], file: str) -> Manifest:
    if found.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(file, f"schema_version must be {SCHEMA_VERSION}")
    model = found.get("model")
    files = model.get("files") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(files, list) or not files:
        raise CheckpointError(file, "model: needs name, version and files")
    parents = found.get("parents")
    try:
        return Manifest(
            name=_string(model, "name"),
            version=_string(model, "version"),
            files=tuple(map(_file, files)),
            engine_version=_string(found, "engine_version"),
            created=_string(found, "created"),
            data=_table(found, "data"),
            config_hash=None if found.get("config_hash") is None else _string(found, "config_hash"),
            quantization=None
            if found.get("quantization") is None
            else _table(found, "quantization"),
            parents=tuple(parents if isinstance(parents, list) else ()),
            hyper_parameters=_table(found, "hyper_parameters"),
            evaluation=None if found.get("evaluation") is None else _table(found, "evaluation"),
        )
    except ValueError as error:
        raise CheckpointError(file, str(error)) from None


def _file(value: Any) -> ManifestFile:
    if not isinstance(value, dict) or not is_integer(value.get("size")):
        raise ValueError("model.files: each has path, size and sha256")
    path = _string(value, "path")
    if path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"model.files: {path[:80]!r} leads out of the folder")
    return ManifestFile(path, value["size"], _string(value, "sha256"))


def _string(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} must be a text")
    return value


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be a table")
    return value
