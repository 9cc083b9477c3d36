"""A release: a model, how it is run, the contract of its data and the engine, under one hash.

Owns: the value, its hash, the file that holds it.
May not know: the store around it, servers.
Read next: `store.py`.

    RELEASE/release.json       canonical JSON
    RELEASE/model/…            the model's files, with its manifest
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from firsthand.canonical import canonical
from firsthand.checks import is_integer
from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object, read_whole
from firsthand.values import dataclass
from firsthand.weights.manifest import Manifest, read_manifest
from firsthand.weights.sums import Sums
from firsthand.weights.verifying import verify

FILE: Final = "release.json"
MODEL: Final = "model"
SHORT: Final = 12  # characters of a hash that a person is shown
_MAX_BYTES: Final = 1 << 20
_OWN_HASH: Final = "release_sha256"


@dataclass(frozen=True, slots=True)
class Release:
    """`configuration` are settings of a `[[model]]` table; `golden` the tokens that the model must
    answer to fixed ones; `file` the name of the model where it is one file, else empty."""

    number: int
    name: str
    manifest_sha256: str
    configuration: Mapping[str, Any]
    contract_hash: str | None
    engine_version: str
    file: str
    golden: Mapping[str, Any] | None
    created: str

    @property
    def id(self) -> str:
        """The same for the same model, configuration, contract and engine, whatever its number."""
        parts = {
            "model": self.manifest_sha256,
            "configuration": self.configuration,
            "contract": self.contract_hash,
            "engine": self.engine_version,
        }
        return hashlib.sha256(canonical(parts)).hexdigest()

    def content(self) -> bytes:
        """With the hash of all the rest, so that one bit that changed is seen."""
        rest = self._rest()
        return canonical(rest | {_OWN_HASH: hashlib.sha256(canonical(rest)).hexdigest()})

    def _rest(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "name": self.name,
            "id": self.id,
            "model": self.manifest_sha256,
            "configuration": self.configuration,
            "contract": self.contract_hash,
            "engine": self.engine_version,
            "file": self.file,
            "golden": self.golden,
            "created": self.created,
        }


def is_release(folder: Path) -> bool:
    return (folder / FILE).is_file()


def read_release(folder: Path) -> Release:
    """Raises CheckpointError for one that is not as it was written."""
    path = folder / FILE
    found = parse_json_object(read_whole(path, _MAX_BYTES), str(path), 65_536)
    said = found.pop(_OWN_HASH, None)
    actual = hashlib.sha256(canonical(found)).hexdigest()
    number, configuration = found.get("number"), found.get("configuration")
    words = [found.get(key) for key in ("name", "model", "engine", "file", "created")]
    golden, contract = found.get("golden"), found.get("contract")
    typed = is_integer(number) and isinstance(configuration, dict)
    typed = typed and all(isinstance(word, str) for word in words)
    if not _is_golden(golden):
        raise CheckpointError(
            str(path), "golden: has the token ids of prompt and tokens, or is null"
        )
    if not typed or not (contract is None or isinstance(contract, str)):
        raise CheckpointError(str(path), "is no record of a release")
    name, model, engine, file, created = words
    release = Release(
        number=number,  # type: ignore[arg-type]  # checked above, as the others
        name=name,  # type: ignore[arg-type]
        manifest_sha256=model,  # type: ignore[arg-type]
        configuration=configuration,  # type: ignore[arg-type]
        contract_hash=contract,
        engine_version=engine,  # type: ignore[arg-type]
        file=file,  # type: ignore[arg-type]
        golden=golden,
        created=created,  # type: ignore[arg-type]
    )
    if actual != said or found.get("id") != release.id:
        message = f"is not as it was written: its hash is {actual}, it says {str(said)[:64]}"
        raise CheckpointError(str(path), message)
    return release


def _is_golden(value: Any) -> bool:
    if value is None:
        return True
    parts = [value.get(key) for key in ("prompt", "tokens")] if isinstance(value, dict) else []
    lists = [part for part in parts if isinstance(part, list) and part]
    return len(lists) == 2 and all(is_integer(one) for part in lists for one in part)


def model_path(folder: Path, release: Release) -> Path:
    return folder / MODEL / release.file if release.file else folder / MODEL


def model_of(model: str) -> str:
    """Where the model of a release lies; whatever is no folder of a release stays as it is. The
    links on the way are followed now. Raises CheckpointError."""
    folder = Path(model)
    if not is_release(folder):
        return model
    folder = folder.resolve()
    return str(model_path(folder, read_release(folder)))


def release_folder(model: str | Path) -> Path | None:
    """That of the release whose model lies at this path."""
    path = Path(model)
    for inner in (path, path.parent):
        if inner.name == MODEL and is_release(inner.parent):
            return inner.parent
    return None


def number_of(folder: Path) -> int | None:
    """By the name of a release's folder; None: it lies in no store."""
    return int(folder.name) if folder.name.isascii() and folder.name.isdigit() else None


def release_of(model: str | Path) -> Release | None:
    """The release whose model lies at this path. Raises CheckpointError."""
    folder = release_folder(model)
    return None if folder is None else read_release(folder)


def verify_release(
    folder: Path, release: Release, sums: Sums, trusted: Path | None = None
) -> Manifest:
    """Compare every file of its model. Raises BadHash, BadSignature, CheckpointError."""
    path = model_path(folder, release)
    found = read_manifest(path)
    if found is not None and found.sha256 != release.manifest_sha256:
        message = f"its manifest is {found.sha256}, the release says {release.manifest_sha256}"
        raise CheckpointError(str(path), message)
    return verify(path, sums, trusted)
