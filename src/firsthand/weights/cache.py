"""The two folders in which models lie: Firsthand's own, and the one shared with the hub's tools.

Owns: both layouts, what makes a folder a complete model, locks, atomic writing.
May not know: networks, pip, what is inside a weight file (only an index's list of shards).
Read next: `catalogue.py` (names to paths), `wheels.py` and `hub.py` (who fills the folders).

    HOME/models/NAME/FILE.gguf                  own: one folder per known name
    HF/models--ORG--NAME/blobs/HASH             shared: contents, named by their hash
                         snapshots/COMMIT/FILE  links into blobs
                         refs/main              the commit that `main` stands for
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from firsthand.config import Environment
from firsthand.errors import CheckpointError, InvalidRequest, ModelNotFound, UnsupportedModel
from firsthand.weights.files import parse_json_object, read_whole
from firsthand.weights.names import HubId, KnownModel, is_commit, is_safe_file, shown
from firsthand.weights.shards import MAX_INDEX_BYTES, MAX_INDEX_ITEMS

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
LEGACY_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_BLOCK_BYTES = 2**20
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a long piece of work is. `total_bytes` is 0 as long as nobody knows."""

    stage: str  # a few words for a person: "downloading", "verifying", …
    file: str
    done_bytes: int = 0
    total_bytes: int = 0


Progress = Callable[[PullProgress], None]


def known_path(known: KnownModel, env: Environment) -> Path:
    """Where the file of a known model lies once it is whole. Nothing partial ever has this name."""
    return env.home / "models" / known.name / known.file


def is_pulled(known: KnownModel, env: Environment) -> bool:
    path = known_path(known, env)
    return path.is_file() and path.stat().st_size == known.num_bytes


def repo_folder(hub_id: HubId, env: Environment) -> Path:
    return env.hf_cache / hub_id.folder


def cached_commit(hub_id: HubId, env: Environment) -> str | None:
    """The commit that the id's revision stands for in the shared cache, None if it has none."""
    if is_commit(hub_id.revision):
        return hub_id.revision
    ref = repo_folder(hub_id, env) / "refs" / hub_id.revision
    if not ref.is_file():
        return None
    with open(ref, "rb") as file:
        commit = file.read(100).decode("ascii", "replace").strip()
    if not is_commit(commit):
        raise CheckpointError(str(ref), "holds no commit id; pull the model again")
    return commit


def snapshot_folder(hub_id: HubId, env: Environment) -> Path | None:
    """The folder of the id's files in the shared cache; it may be incomplete."""
    commit = cached_commit(hub_id, env)
    folder = repo_folder(hub_id, env) / "snapshots" / (commit or "")
    return folder if commit and folder.is_dir() else None


def is_text_file(name: str) -> bool:
    """Whether a model's folder needs the file beside its weights."""
    return name in _TEXT_FILES or (
        name.startswith("tokenizer") and name.endswith((".json", ".model"))
    )


def is_model_file(name: str) -> bool:
    return is_text_file(name) or name.endswith((".safetensors", ".gguf")) or name == INDEX


def model_in(folder: Path, file: str | None = None) -> Path:
    """What to open in `folder`: itself (safetensors), or its one .gguf file, or the `file` asked.

    The model is complete: every shard that an index names is there.
    """
    names = _names_in(folder)
    if file is not None:
        if not (folder / file).is_file():
            raise ModelNotFound(f"no {file} in {folder}; {_what_is_in(names)}")
        return folder / file
    weights = [WEIGHTS] if WEIGHTS in names else []
    if INDEX in names:
        weights = shards_of(folder / INDEX)
    ggufs = [name for name in names if name.endswith(".gguf")]
    if not weights and len(ggufs) > 1:
        raise InvalidRequest("model", f"{folder} has several .gguf files: {_listed(ggufs)}")
    # A link whose blob is gone is a file that an interrupted download left behind.
    missing = [name for name in weights or ggufs if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(str(folder), f"incomplete: missing {_listed(missing)}")
    if weights:
        return folder
    if ggufs:
        return folder / ggufs[0]
    legacy = [name for name in names if name.endswith(LEGACY_SUFFIXES)]
    if legacy:
        raise UnsupportedModel(convert_first(str(folder), legacy))
    raise ModelNotFound(f"no model in {folder}: {_what_is_in(names)}")


def convert_first(where: str, legacy: list[str]) -> str:
    return (
        f"{where} has only {_listed(legacy)}: a form that can run code when it is read. "
        "Get the files, then `firsthand convert FOLDER NEW_FOLDER` writes safetensors from them"
    )


def shards_of(index: Path) -> list[str]:
    """The files that a safetensors index names: plain names, in the index's own folder."""
    content = read_whole(index, MAX_INDEX_BYTES)
    table = parse_json_object(content, str(index), MAX_INDEX_ITEMS).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError(str(index), "weight_map is not a filled object")
    for shard in table.values():
        if not isinstance(shard, str) or "/" in shard or not is_safe_file(shard):
            raise CheckpointError(str(index), f"names a shard {shown(str(shard))}: no plain name")
    return sorted(set(table.values()))


def file_sha256(path: Path, report: Callable[[int], None] | None = None) -> str:
    """The file's SHA-256 in hexadecimal; `report` gets the bytes read so far."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if report is not None:
                report(file.tell())
    return digest.hexdigest()


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`. It ends with its process, however that ends; the file stays.

    The hub's own tools lock the same way, so that both may fill the shared cache at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def publish(partial: Path, final: Path) -> None:
    """Give a whole file its name. Whoever sees the name sees all bytes, even after a power cut."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _sync(partial)
    os.replace(partial, final)
    _sync(final.parent)


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        partial.write_text(text, encoding="utf-8")
        publish(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise ModelNotFound(f"{folder} cannot be listed: {error.strerror}") from error


def _what_is_in(names: list[str]) -> str:
    ggufs = [name for name in names if name.endswith(".gguf")]
    return f"it has {_listed(ggufs)}" if ggufs else f"no {WEIGHTS}, no {INDEX}, no .gguf file"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(name[:100] for name in names[:12]) + more
