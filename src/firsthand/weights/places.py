"""The two folders in which models lie: Firsthand's own, and the one shared with the hub's tools.

Owns: both layouts, locks, atomic writing.
May not know: networks, pip, which files are a model (`folder.py`).
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
from pathlib import Path

from firsthand.config import Environment
from firsthand.errors import CheckpointError
from firsthand.files import sync
from firsthand.values import dataclass
from firsthand.weights.model_names import HubId, KnownModel, is_commit, parse_hub_id

_BLOCK_BYTES = 2**20


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


def cached_repos(env: Environment) -> Iterator[HubId]:
    """The models of the shared cache; folders with names that no id has are passed over."""
    if not env.hf_cache.is_dir():
        return
    for folder in sorted(env.hf_cache.glob("models--*--*")):
        hub_id = parse_hub_id(folder.name.removeprefix("models--").replace("--", "/", 1))
        if hub_id is not None and hub_id.folder == folder.name and folder.is_dir():
            yield hub_id


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
    sync(partial)
    os.replace(partial, final)
    sync(final.parent)


def write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        partial.write_bytes(content)
        publish(partial, path)
    finally:
        partial.unlink(missing_ok=True)
