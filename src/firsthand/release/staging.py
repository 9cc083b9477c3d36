"""A model becomes a release: its files by their hashes in the store, and its golden tokens.

Owns: the order of the steps; that nothing half has a number.
May not know: settings of a server; the caller says how a model is run.
Read next: `store.py`, `switching.py`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from firsthand.errors import ReleaseRefused
from firsthand.generation.golden import PROMPT
from firsthand.generation.golden_answer import agreed_tokens
from firsthand.generation.service_values import ServiceOptions
from firsthand.release.engines import note_engine
from firsthand.release.history import now
from firsthand.release.record import FILE, MODEL, Release, model_path, verify_release
from firsthand.release.store import Store
from firsthand.values import dataclass
from firsthand.version import VERSION
from firsthand.weights.manifest import Manifest, files_of, read_manifest, signature_path
from firsthand.weights.manifest_writing import Told, make_manifest, write_manifest
from firsthand.weights.places import write_atomically
from firsthand.weights.sums import Sums
from firsthand.weights.verifying import verify


@dataclass(frozen=True, slots=True)
class Staged:
    """`run` says how a model at a path is run with the configuration; None: its golden tokens are
    not asked for. `trusted` are keys, of which one must have signed the model's manifest."""

    name: str
    configuration: Mapping[str, Any]
    contract_hash: str | None
    run: Callable[[Path], ServiceOptions] | None
    trusted: Path | None = None
    allow_older: bool = False


def stage(store: Store, model: Path, wanted: Staged, sums: Sums) -> tuple[Release, bool]:
    """The release, and whether it is new: the same content is staged once.

    Raises BadHash for a model that is not what its manifest says, BadSignature, ReleaseRefused for
    a version before one that is there, and what a load raises.
    """
    manifest = _manifest(model, wanted, sums)
    release = Release(
        number=0,
        name=wanted.name,
        manifest_sha256=manifest.sha256,
        configuration=wanted.configuration,
        contract_hash=wanted.contract_hash,
        engine_version=VERSION,
        file="" if model.is_dir() else model.name,
        golden=None,
        created=now(),
    )
    with store.filling():
        note_engine(store.root)
        for number in store.numbers():
            there = store.read(number)
            if there.id == release.id:
                return _with_golden(store, there, wanted), False
        if not wanted.allow_older:
            _check_no_older(store, manifest, wanted.name)
        release = replace(release, number=_next_number(store))
        partial = store.releases / f".stage.{os.urandom(4).hex()}"
        try:
            release = _fill(store, partial, release, model, manifest, wanted, sums)
            os.rename(partial, store.folder(release.number))
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        store.history.add("stage", release.number, id=release.id, name=release.name)
    return release, True


def _manifest(model: Path, wanted: Staged, sums: Sums) -> Manifest:
    if wanted.trusted is not None or read_manifest(model) is not None:
        return verify(model, sums, wanted.trusted)
    return make_manifest(model, Told(name=wanted.name), sums)


def _check_no_older(store: Store, manifest: Manifest, name: str) -> None:
    """What goes back is a rollback, of a release that is there; an earlier version that comes anew
    is a slip, or somebody's who has an old signature. Raises ReleaseRefused."""
    for number in store.numbers():
        release = store.read(number)
        there = read_manifest(model_path(store.folder(number), release))
        if there is None or release.name != name or there.name != manifest.name:
            continue
        if _version(there.version) > _version(manifest.version):
            message = f"{manifest.name} {manifest.version} is older than release {number}"
            raise ReleaseRefused(f"{message}, {there.version}: roll back, or say --allow-older")


def _version(text: str) -> tuple[int, ...]:
    """Numbers with points between; anything else has no order."""
    parts = text.removeprefix("v").split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _next_number(store: Store) -> int:
    """Never one that was used, also of a release that is gone."""
    told = [line.get("release") for line in store.history.lines()]
    return max([0, *store.numbers(), *(one for one in told if isinstance(one, int))]) + 1


def _fill(
    store: Store,
    folder: Path,
    release: Release,
    model: Path,
    manifest: Manifest,
    wanted: Staged,
    sums: Sums,
) -> Release:
    paths = dict(files_of(model))
    (folder / MODEL).mkdir(parents=True)
    for one in manifest.files:
        store.place(paths[one.path], one.sha256, folder / MODEL / one.path)
    target = model_path(folder, release)
    write_manifest(target, manifest)
    if signature_path(model).exists():
        write_atomically(signature_path(target), signature_path(model).read_bytes())
    verify_release(folder, release, sums)
    if wanted.run is not None:
        release = _asked(release, target, wanted.run)
    write_atomically(folder / FILE, release.content())
    return release


def _with_golden(store: Store, release: Release, wanted: Staged) -> Release:
    """One that was staged without its golden tokens gets them, where they are wanted now."""
    if release.golden is not None or wanted.run is None:
        return release
    folder = store.folder(release.number)
    release = _asked(release, model_path(folder, release), wanted.run)
    write_atomically(folder / FILE, release.content())
    return release


def _asked(release: Release, model: Path, run: Callable[[Path], ServiceOptions]) -> Release:
    tokens = asyncio.run(agreed_tokens(run(model)))
    return replace(release, golden={"prompt": list(PROMPT), "tokens": list(tokens)})
