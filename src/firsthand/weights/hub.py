"""Models from the hub, downloaded into the cache that its own tools share.

Owns: the hub's protocol, which files of a repository are a model, the order of writing.
May not know: requests and retries (`transfer.py`), what is inside a file.
Read next: `transfer.py` below, `catalogue.py` above.

The order makes an interrupted pull invisible: every blob under its hash, verified; then the
snapshot's folder of links, whole, by one rename; then the ref that names it.

A server's file names and hashes become paths here, so each is matched against an allow-list
first; one that does not match ends the pull.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from urllib.parse import quote

from firsthand.config import Environment
from firsthand.errors import DownloadFailed, InvalidRequest, ModelNotFound, UnsupportedModel
from firsthand.values import dataclass
from firsthand.weights.file_index import parse_index
from firsthand.weights.folder import (
    INDEX,
    LEGACY_SUFFIXES,
    WEIGHTS,
    convert_first,
    is_companion,
    is_model_file,
    model_in,
    safetensors_entry,
)
from firsthand.weights.gguf_parts import first_parts, part_names
from firsthand.weights.model_names import HubId, is_commit, is_safe_file, is_sha256, shown
from firsthand.weights.places import (
    Progress,
    PullProgress,
    file_sha256,
    locked,
    publish,
    repo_folder,
    snapshot_folder,
    write_atomically,
)
from firsthand.weights.transfer import Client, RemoteFile, download, get_json, look_up

_MAX_FILES = 100_000


@dataclass(frozen=True, slots=True)
class _Pull:
    """What every step of one pull needs."""

    client: Client
    hub_id: HubId
    commit: str
    cache: Path  # the shared cache
    repo: Path  # this model's folder in it
    progress: Progress


def pull_hub(
    hub_id: HubId, env: Environment, progress: Progress, client: Client | None = None
) -> Path:
    """Download what is missing of the model; the path of its folder or .gguf file.

    With HF_HUB_OFFLINE the hub is not asked: what the cache has must be complete.
    """
    if env.hf_offline:
        snapshot = snapshot_folder(hub_id, env)
        if snapshot is None:
            raise DownloadFailed(f"{hub_id}: HF_HUB_OFFLINE is set, so the hub is not asked")
        return model_in(snapshot, hub_id.file)
    if client is None:
        client = Client(env.hf_endpoint, env.hf_token)
    progress(PullProgress("asking the hub", str(hub_id)))
    commit, names = _list_files(client, hub_id)
    wanted = choose_files(names, hub_id)
    pull = _Pull(client, hub_id, commit, env.hf_cache, repo_folder(hub_id, env), progress)
    try:
        blobs = _fetch_all(pull, wanted, names)
        path = _write_snapshot(pull, blobs)
        if hub_id.revision != commit:
            write_atomically(pull.repo / "refs" / hub_id.revision, commit.encode())
    except OSError as error:
        raise DownloadFailed(f"{hub_id}: cannot write below {env.hf_cache}: {error}") from error
    return path


def hub_bytes(hub_id: HubId, env: Environment, client: Client | None = None) -> int:
    """The files that `pull_hub` would bring, together; no file of weights is fetched."""
    if client is None:
        client = Client(env.hf_endpoint, env.hf_token)
    commit, names = _list_files(client, hub_id)
    wanted = choose_files(names, hub_id)
    pull = _Pull(client, hub_id, commit, env.hf_cache, repo_folder(hub_id, env), lambda _: None)
    if INDEX in wanted:
        shards = get_json(client, _file_url(pull, INDEX))
        try:
            found = set(map(str, shards["weight_map"].values()))
        except (KeyError, TypeError, AttributeError) as error:
            raise DownloadFailed(f"{hub_id}: {INDEX} has no weight_map") from error
        wanted += [name for name in names if name in found]
    return sum(_look_up(pull, name).num_bytes for name in dict.fromkeys(wanted))


def choose_files(names: list[str], hub_id: HubId) -> list[str]:
    """The files of a repository that are the model. An index stands for the shards it names."""
    for name in names:
        if is_model_file(re.split(r"[/\\]", name)[-1]) and not is_safe_file(name):
            raise DownloadFailed(
                f"{hub_id}: the hub lists a file that we do not name: {shown(name)}"
            )
    ggufs = [name for name in names if name.endswith(".gguf")]
    if hub_id.file is not None:
        return _asked_gguf(hub_id, hub_id.file, ggufs)
    top = [name for name in names if "/" not in name]
    texts = [name for name in top if is_companion(name)]
    # The same weights often lie there twice, in other forms and cuts.
    entry = safetensors_entry(top)
    if entry is not None:
        return [*texts, entry]
    if len(first_parts(ggufs)) == 1 and ggufs[0] in top:
        return _asked_gguf(hub_id, ggufs[0], ggufs)
    if ggufs:
        raise InvalidRequest(
            "model", f"name the .gguf file that you want: {_choices(hub_id, ggufs)}"
        )
    legacy = [name for name in top if name.endswith(LEGACY_SUFFIXES)]
    if legacy:
        raise UnsupportedModel(convert_first(hub_id.repo, legacy))
    raise UnsupportedModel(f"{hub_id.repo} has no {WEIGHTS}, no {INDEX}, no .gguf file")


def _asked_gguf(hub_id: HubId, file: str, ggufs: list[str]) -> list[str]:
    """It, or all parts of the model of which it is one."""
    if file not in ggufs:
        raise ModelNotFound(f"{hub_id.repo} has no {file}; it has {_choices(hub_id, ggufs)}")
    there = set(ggufs)
    parts = [*part_names(file)]
    for name in parts:
        if name not in there:
            raise ModelNotFound(f"{hub_id.repo} has no {name}, one of {len(parts)} parts")
    return parts


def _choices(hub_id: HubId, ggufs: list[str]) -> str:
    names = sorted(first_parts(ggufs))[:20]
    return ", ".join(f"{hub_id.repo}:{name}" for name in names) or "no .gguf file"


def _list_files(client: Client, hub_id: HubId) -> tuple[str, list[str]]:
    """The commit that the revision stands for now, and the names of its files, unchecked."""
    revision = quote(hub_id.revision, safe="")
    answer = get_json(client, f"{client.endpoint}/api/models/{hub_id.repo}/revision/{revision}")
    try:
        commit = answer["sha"]
        names = [entry["rfilename"] for entry in answer["siblings"]]
    except (KeyError, TypeError) as error:
        raise DownloadFailed(f"{hub_id}: the hub's answer has no sha or no siblings") from error
    if not isinstance(commit, str) or not is_commit(commit):
        raise DownloadFailed(f"{hub_id}: the hub names a commit {shown(str(commit))}")
    if len(names) > _MAX_FILES or not all(isinstance(name, str) for name in names):
        raise DownloadFailed(f"{hub_id}: the hub's list of files is not one")
    return commit, names


def _fetch_all(pull: _Pull, wanted: list[str], names: list[str]) -> dict[str, Path]:
    """Every wanted file as a verified blob, by the name that it has in the model."""
    wanted = list(dict.fromkeys(wanted))
    blobs: dict[str, Path] = {}
    if INDEX in wanted:
        remote = _look_up(pull, INDEX)
        blobs[INDEX] = _fetch(pull, INDEX, remote, 0, remote.num_bytes)
        shards = parse_index(blobs[INDEX], INDEX, ".safetensors").files
        missing = [name for name in shards if name not in names]
        if missing:
            raise DownloadFailed(f"{pull.hub_id}: the index names {missing[0]}, the hub has it not")
        wanted = [name for name in dict.fromkeys([*wanted, *shards]) if name != INDEX]
    remotes = {name: _look_up(pull, name) for name in wanted}
    total_bytes = sum(remote.num_bytes for remote in remotes.values())
    done_bytes = 0
    for name, remote in remotes.items():
        blobs[name] = _fetch(pull, name, remote, done_bytes, total_bytes)
        done_bytes += remote.num_bytes
    return blobs


def _file_url(pull: _Pull, name: str) -> str:
    return f"{pull.client.endpoint}/{pull.hub_id.repo}/resolve/{pull.commit}/{quote(name)}"


def _look_up(pull: _Pull, name: str) -> RemoteFile:
    remote = look_up(pull.client, _file_url(pull, name))
    if not is_sha256(remote.etag) and not is_commit(remote.etag):
        raise DownloadFailed(
            f"{pull.hub_id}: {name}: the hub gives no hash to verify, but {shown(remote.etag)}"
        )
    if remote.commit is not None and remote.commit != pull.commit:
        raise DownloadFailed(f"{pull.hub_id}: {name} comes from another commit than its model")
    return remote


def _fetch(pull: _Pull, name: str, remote: RemoteFile, done_bytes: int, total_bytes: int) -> Path:
    """The file's blob: found, or downloaded (going on from a partial file) and verified."""
    blob = pull.repo / "blobs" / remote.etag
    if _is_there(blob, remote):
        return blob

    def waiting() -> None:
        pull.progress(PullProgress("waiting for another pull", name))

    def report(size: int) -> None:
        pull.progress(PullProgress("downloading", name, done_bytes + size, total_bytes))

    lock = pull.cache / ".locks" / pull.hub_id.folder / f"{remote.etag}.lock"
    with locked(lock, waiting):
        if _is_there(blob, remote):
            return blob
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = blob.with_name(f"{remote.etag}.incomplete")
        resumed = partial.is_file() and partial.stat().st_size > 0
        download(pull.client, _file_url(pull, name), partial, remote.num_bytes, report)
        if resumed and not _matches(partial, remote):
            # The part that was there is not of this file: once more, from the beginning.
            partial.unlink()
            download(pull.client, _file_url(pull, name), partial, remote.num_bytes, report)
        if not _matches(partial, remote):
            partial.unlink()
            raise DownloadFailed(
                f"{pull.hub_id}: {name} arrived with another hash than {remote.etag}; "
                "nothing of it is kept"
            )
        publish(partial, blob)
    return blob


def _is_there(blob: Path, remote: RemoteFile) -> bool:
    return blob.is_file() and blob.stat().st_size == remote.num_bytes


def _matches(path: Path, remote: RemoteFile) -> bool:
    """Large files are named by their SHA-256, others by the SHA-1 that git gives a blob."""
    if is_sha256(remote.etag):
        return file_sha256(path) == remote.etag
    digest = hashlib.sha1(b"blob %d\0" % remote.num_bytes, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest() == remote.etag


def _write_snapshot(pull: _Pull, blobs: dict[str, Path]) -> Path:
    """The folder of links, complete before it has its name. Returns the model's path in it."""
    snapshots = pull.repo / "snapshots"
    final = snapshots / pull.commit
    building = snapshots / f".{pull.commit}.{os.urandom(4).hex()}"
    building.mkdir(parents=True)
    try:
        for name, blob in blobs.items():
            _link(blob, building / name)
        try:
            building.rename(final)
        except OSError:
            # Another pull of this commit was faster, or brought other files of it.
            for name in blobs:
                (final / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(building / name, final / name)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return model_in(final, pull.hub_id.file)


def _link(blob: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Relative, so that the cache may be moved.
        target.symlink_to(os.path.relpath(blob, target.parent))
    except (OSError, NotImplementedError):  # a file system without links
        shutil.copyfile(blob, target)
