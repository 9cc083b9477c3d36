"""Models from object storage: `s3://bucket/prefix`, fetched in parallel ranges into our cache; and
a small object by itself, such as a server's settings.

Owns: which objects are a model, the order of writing.
May not know: how a range is asked for (`object_ranges.py`), what is inside a file.
Read next: `object_names.py`, `object_ranges.py` below, `catalogue.py` above.

Every file is compared with a hash before it counts: that of a `SHA256SUMS` beside it, else the
object's ETag, as far as that is made of MD5 sums. Without either a model is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from firsthand.config import Environment
from firsthand.errors import DownloadFailed, ModelNotFound, UnsupportedModel
from firsthand.files import read_whole
from firsthand.weights.file_index import parse_index
from firsthand.weights.folder import INDEX, WEIGHTS, is_companion, model_in, safetensors_entry
from firsthand.weights.gguf_parts import first_parts, part_names
from firsthand.weights.model_names import is_safe_file, is_sha256, shown
from firsthand.weights.object_names import ObjectId, object_folder
from firsthand.weights.object_ranges import (
    Bucket,
    ObjectChanged,
    RemoteObject,
    fetch_object,
    is_of_etag,
    open_bucket,
    patiently,
)
from firsthand.weights.places import (
    Progress,
    PullProgress,
    file_sha256,
    locked,
    write_atomically,
)

SUMS = "SHA256SUMS"
MAX_OBJECTS = 100_000
MAX_SUMS_BYTES = 1 << 20
_TRIES = 2  # of a pull whose objects change meanwhile


def pull_objects(
    object_id: ObjectId, env: Environment, progress: Progress, bucket: Bucket | None = None
) -> Path:
    """Fetch what is missing of the model; its folder. Objects that change meanwhile are fetched
    once more as they are then. Raises DownloadFailed, ModelNotFound, UnsupportedModel."""
    if bucket is None:
        bucket = open_bucket(object_id.bucket, env.s3_endpoint)
    for _ in range(_TRIES):
        progress(PullProgress("asking the bucket", str(object_id)))
        try:
            return _pull_version(object_id, env, progress, bucket)
        except ObjectChanged as error:
            changed = error
        except OSError as error:
            raise DownloadFailed(f"{object_id}: cannot write below {env.home}: {error}") from error
    raise DownloadFailed(f"{object_id}: {changed}, again and again; nothing of it is used")


def read_object(object_id: ObjectId, env: Environment, most_bytes: int) -> bytes:
    """A small object, of that name alone; of a larger one a byte more. Raises DownloadFailed,
    ModelNotFound."""
    bucket = open_bucket(object_id.bucket, env.s3_endpoint)
    one = patiently(str(object_id), lambda: bucket.find(object_id.prefix))
    stop = min(one.num_bytes, most_bytes + 1)
    try:
        return patiently(str(object_id), lambda: bucket.read(one.key, 0, stop, one.etag))
    except ObjectChanged as error:
        raise DownloadFailed(f"{object_id}: {error}") from error


def _pull_version(
    object_id: ObjectId, env: Environment, progress: Progress, bucket: Bucket
) -> Path:
    there = _listed(object_id, bucket)
    wanted = [there[name] for name in _choose(object_id, there)]
    facts = [[one.name, one.num_bytes, one.etag] for one in there.values()]
    version = hashlib.sha256(json.dumps(sorted(facts)).encode("utf-8")).hexdigest()
    folder = object_folder(object_id, env)
    final = folder / version

    def waiting() -> None:
        progress(PullProgress("waiting for another pull", str(object_id)))

    with locked(folder / "lock", waiting):
        if not final.is_dir():
            building = folder / f".{version}"
            building.mkdir(exist_ok=True)
            _fetch_all(object_id, bucket, there, wanted, building, progress)
            for left in building.glob("*.parts"):
                left.unlink()
            building.rename(final)
        write_atomically(folder / "address", str(object_id).encode("ascii"))
        write_atomically(folder / "current", version.encode("ascii"))
    return model_in(final)


def _listed(object_id: ObjectId, bucket: Bucket) -> dict[str, RemoteObject]:
    """What lies directly under the prefix, by the name that it has in the model."""
    border = f"{object_id.prefix}/"
    found: dict[str, RemoteObject] = {}
    for one in patiently(f"the list of {object_id}", lambda: bucket.list(border, MAX_OBJECTS)):
        name = one.key.removeprefix(border)
        if is_safe_file(name) and "/" not in name:
            found[name] = one
    if not found:
        raise ModelNotFound(f"{object_id}: the bucket has nothing under this prefix")
    return found


def _choose(object_id: ObjectId, names: Iterable[str]) -> list[str]:
    names = list(names)
    texts = [name for name in names if is_companion(name) or name == SUMS]
    entry = safetensors_entry(names)
    if entry is not None:
        return [*texts, entry] if entry not in texts else texts
    ggufs = [name for name in names if name.endswith(".gguf")]
    models = first_parts(ggufs)
    if len(models) == 1:
        missing = [name for name in part_names(models[0]) if name not in ggufs]
        if missing:
            raise DownloadFailed(f"{object_id}: {missing[0]}, a part of its .gguf, is not there")
        return [*texts, *ggufs]
    what = f"{len(models)} .gguf files" if ggufs else "no .gguf file"
    raise UnsupportedModel(f"{object_id} has no {WEIGHTS}, no {INDEX}, {what}")


def _fetch_all(
    object_id: ObjectId,
    bucket: Bucket,
    there: Mapping[str, RemoteObject],
    wanted: list[RemoteObject],
    building: Path,
    progress: Progress,
) -> None:
    first = [one for one in wanted if one.name in (SUMS, INDEX)]
    sums: dict[str, str] = {}
    for one in sorted(first, key=lambda one: one.name == INDEX):  # the sums are of the index, too
        _fetch(object_id, bucket, one, building, sums, lambda size: None)
        if one.name == SUMS:
            sums = _read_sums(building / SUMS)
    if any(one.name == INDEX for one in first):
        names = parse_index(building / INDEX, INDEX, ".safetensors").files
        missing = [name for name in names if name not in there]
        if missing:
            raise DownloadFailed(f"{object_id}: the index names {missing[0]}, which is not there")
        wanted = [*wanted, *(there[name] for name in dict.fromkeys(names))]
    rest = [one for one in wanted if one not in first]
    total, done = sum(one.num_bytes for one in rest), 0
    for one in rest:

        def report(size: int, name: str = one.name, before: int = done) -> None:
            progress(PullProgress("downloading", name, before + size, total))

        _fetch(object_id, bucket, one, building, sums, report)
        done += one.num_bytes


def _fetch(
    object_id: ObjectId,
    bucket: Bucket,
    one: RemoteObject,
    building: Path,
    sums: Mapping[str, str],
    report: Callable[[int], None],
) -> None:
    """The file under its name, compared with its hash; a wrong one is fetched once more, whole."""
    path = building / one.name
    for _ in range(2):
        if not path.is_file():
            fetch_object(bucket, one, path, report)
        if one.name == SUMS:  # says what is right; an ETag need not be a sum
            return
        expected = sums.get(one.name)
        if expected is None and is_of_etag(path, one.etag):
            return
        if expected is not None and file_sha256(path) == expected:
            return
        path.unlink()
    against = f"its line in {SUMS}" if expected is not None else f"its ETag {shown(one.etag)}"
    hint = "" if expected is not None else f"; a {SUMS} beside it would be used instead"
    raise DownloadFailed(
        f"{object_id}: {one.name} is not what {against} says; nothing of it is kept{hint}"
    )


def _read_sums(path: Path) -> dict[str, str]:
    """The form of `sha256sum`: a hash, two signs, a name."""
    sums = {}
    for line in read_whole(path, MAX_SUMS_BYTES).decode("utf-8", "replace").splitlines():
        digest, _, name = line.partition(" ")
        if is_sha256(digest) and name:
            sums[name[1:].removeprefix("./")] = digest
    return sums
