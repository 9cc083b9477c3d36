"""The models on this machine, one row for each.

Owns: what is a row, and what it is called.
May not know: what is inside a weight file.
Read next: `catalogue.py`, which makes a path of a name; `places.py` and `modelscope.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from firsthand.config import Environment
from firsthand.errors import CheckpointError, FirsthandError
from firsthand.values import dataclass
from firsthand.weights.folder import Form, form_of, model_in
from firsthand.weights.gguf_parts import first_parts, parts_of
from firsthand.weights.model_names import KNOWN_MODELS, HubId, KnownModel, is_commit
from firsthand.weights.modelscope import modelscope_models
from firsthand.weights.object_names import pulled_folder, pulled_objects
from firsthand.weights.packed_cache import list_packed, packed_folder, packed_of
from firsthand.weights.places import (
    cached_commit,
    cached_repos,
    is_pulled,
    known_path,
    repo_folder,
)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One row of `firsthand list`. `name` is what to write as MODEL."""

    name: str
    path: Path
    form: Form
    size_bytes: int
    revision: str
    complete: bool
    packed_bytes: int = 0  # of its packed forms


def list_models(
    env: Environment, known: Mapping[str, KnownModel] = KNOWN_MODELS
) -> list[LocalModel]:
    """What the caches hold, incomplete models too, sorted by name."""
    rows = [
        _row(name, known_path(model, env), "gguf", model.sha256, complete=True)
        for name, model in known.items()
        if is_pulled(model, env)
    ]
    for hub_id in cached_repos(env):
        rows.extend(_hub_rows(hub_id, env))
    names = {row.name for row in rows}
    for hub_id, folder in modelscope_models(env):
        # Under a name that the shared cache has too, that one is meant.
        rows += [row for row in _folder_rows(str(hub_id), folder, "") if row.name not in names]
    rows += [
        _row(str(one), path, form_of(path), path.name, complete=True)
        for one in pulled_objects(env)
        if (path := pulled_folder(one, env)) is not None
    ]
    packed = list_packed(packed_folder(env.home))
    rows = [
        replace(row, packed_bytes=sum(m.size_bytes for m in packed_of(row.path, packed)))
        for row in rows
    ]
    return sorted(rows, key=lambda row: row.name)


def _hub_rows(hub_id: HubId, env: Environment) -> Iterator[LocalModel]:
    """One row for each snapshot that has weights; for .gguf, one for each file."""
    try:
        main = cached_commit(hub_id, env)
    except CheckpointError:
        main = None
    for snapshot in sorted((repo_folder(hub_id, env) / "snapshots").glob("[0-9a-f]*")):
        if not is_commit(snapshot.name) or not snapshot.is_dir():
            continue
        name = hub_id.repo if snapshot.name == main else f"{hub_id.repo}@{snapshot.name}"
        yield from _folder_rows(name, snapshot, snapshot.name)


def _folder_rows(name: str, folder: Path, revision: str) -> Iterator[LocalModel]:
    if any(".safetensors" in path.name for path in folder.iterdir()):
        yield _row(name, folder, "safetensors", revision, complete=_is_complete(folder))
    for file in first_parts(str(path) for path in sorted(folder.rglob("*.gguf"))):
        path = Path(file)
        called = f"{name}:{path.relative_to(folder).as_posix()}"
        complete = all(part.is_file() for part in parts_of(path))
        yield _row(called, path, "gguf", revision, complete=complete)


def _is_complete(folder: Path) -> bool:
    try:
        model_in(folder)
    except FirsthandError:
        return False
    return True


def _row(name: str, path: Path, form: Form, revision: str, *, complete: bool) -> LocalModel:
    files = parts_of(path) if form == "gguf" else path.iterdir()
    stats = [file.stat() for file in files if file.is_file()]
    return LocalModel(
        name=name,
        path=path,
        form=form,
        size_bytes=sum(stat.st_size for stat in stats),
        revision=revision,
        complete=complete,
    )
