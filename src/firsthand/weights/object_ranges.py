"""One object of a bucket, fetched in parallel ranges, resumed, never half.

Owns: ranges, retries, the record of what is there, the seam to the client library (an extra).
May not know: models, which objects are wanted, the cache's layout.
Read next: `objects.py`, the only user.

Each range is asked for under the ETag of the listing: a changed object answers with an error
instead of a mixture. What has come is recorded part by part beside the file, under the same ETag,
so that a pull that ended goes on where it was. The file gets its name when all parts are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from firsthand.errors import CheckpointError, DownloadFailed, InvalidRequest, ModelNotFound
from firsthand.files import parse_json_object, read_whole
from firsthand.values import dataclass
from firsthand.weights.places import publish, write_atomically

_T = TypeVar("_T")
PART_BYTES = 8 << 20
NUM_THREADS = 8
_BLOCK_BYTES = 1 << 20
_MD5 = re.compile(r"([0-9a-f]{32})(?:-([1-9][0-9]{0,4}))?", re.ASCII)
_MIB = 1 << 20
# What programs cut uploads into.
_UPLOAD_PARTS = tuple(
    size * _MIB for size in (5, 8, 10, 15, 16, 25, 32, 50, 64, 100, 128, 256, 512)
)


class ObjectChanged(Exception):
    """It is not the object that was listed. Never leaves the package's pull."""


class PassingFailure(Exception):
    """What may be right at the next try. Never leaves this module's callers."""


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """What the listing says. `etag` is without quotes, unchecked."""

    key: str
    num_bytes: int
    etag: str

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]


class Bucket(Protocol):
    """A client of one bucket. Any thread may call."""

    def list(self, prefix: str, most: int) -> Sequence[RemoteObject]:
        """All that begin so. Raises DownloadFailed if they are more, and as `read`."""

    def find(self, key: str) -> RemoteObject:
        """The object of that very name. Raises as `read`."""

    def read(self, key: str, start: int, stop: int, etag: str) -> bytes:
        """The bytes of this version of the object. Raises ObjectChanged, PassingFailure,
        ModelNotFound, DownloadFailed."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a range is tried; waits double from `backoff_s`."""

    max_tries: int = 5
    backoff_s: float = 0.3
    sleep: Callable[[float], None] = field(default=time.sleep)


PATIENCE = Patience()


def fetch_object(
    bucket: Bucket,
    one: RemoteObject,
    path: Path,
    report: Callable[[int], None],
) -> None:
    """Fetch it as `path`, which gets its name when all bytes are there. On failure what came stays
    beside it, for the next call. Raises as `Bucket.read`."""
    partial, record = (
        path.with_name(f"{path.name}.incomplete"),
        path.with_name(f"{path.name}.parts"),
    )
    parts = range(-(-one.num_bytes // PART_BYTES))
    done = _recorded(record, one) if partial.is_file() else set()
    missing = [part for part in parts if part not in done]
    room = sum(_stop(one, part) - part * PART_BYTES for part in missing)
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < room:
        raise DownloadFailed(f"{room} bytes do not fit into {path.parent}: {free_bytes} are free")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        os.ftruncate(descriptor, one.num_bytes)

        def fetch(part: int) -> int:
            start, stop = part * PART_BYTES, _stop(one, part)
            _write_at(descriptor, _read_range(bucket, one, start, stop), start)
            return part

        with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="object-range") as threads:
            waiting = [threads.submit(fetch, part) for part in missing]
            try:
                report(one.num_bytes - room)
                for future in waiting:
                    done.add(future.result())
                    _record(record, one, done)
                    report(sum(_stop(one, part) - part * PART_BYTES for part in done))
            except BaseException:
                for future in waiting:
                    future.cancel()
                raise
    finally:
        os.close(descriptor)
    publish(partial, path)
    record.unlink(missing_ok=True)


def _stop(one: RemoteObject, part: int) -> int:
    return min(one.num_bytes, (part + 1) * PART_BYTES)


def _read_range(bucket: Bucket, one: RemoteObject, start: int, stop: int) -> bytes:
    def read() -> bytes:
        found = bucket.read(one.key, start, stop, one.etag)
        if len(found) != stop - start:
            raise PassingFailure(f"{len(found)} bytes came, not {stop - start}")
        return found

    return patiently(f"{one.key}: bytes {start} to {stop}", read)


def patiently(what: str, action: Callable[[], _T]) -> _T:
    """The action's result, tried again where its failure may pass. Raises DownloadFailed."""
    problem, patience = "", PATIENCE
    for tried in range(patience.max_tries):
        if tried:
            patience.sleep(patience.backoff_s * 2 ** (tried - 1))
        try:
            return action()
        except PassingFailure as error:
            problem = str(error)
    raise DownloadFailed(f"{what}: {problem} ({patience.max_tries} tries)")


def _write_at(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _recorded(record: Path, one: RemoteObject) -> set[int]:
    try:
        found = parse_json_object(read_whole(record, _MIB), str(record), 1 << 20)
    except CheckpointError:
        return set()
    if [found.get("etag"), found.get("size")] != [one.etag, one.num_bytes]:
        return set()
    parts = found.get("parts")
    return {part for part in parts if isinstance(part, int)} if isinstance(parts, list) else set()


def _record(record: Path, one: RemoteObject, done: set[int]) -> None:
    content = {"etag": one.etag, "size": one.num_bytes, "parts": sorted(done)}
    write_atomically(record, json.dumps(content).encode())


def is_of_etag(path: Path, etag: str) -> bool:
    """Whether the file has the MD5 that the ETag is: of the whole, or of the sums of the parts in
    which it was uploaded, of a usual size. An ETag that is made otherwise is that of no file."""
    found = _MD5.fullmatch(etag)
    if found is None:
        return False
    if found[2] is None:
        return _md5_of(path, None)[0] == etag
    count, size = int(found[2]), path.stat().st_size
    for part_bytes in _UPLOAD_PARTS:
        if -(-size // part_bytes) == count and _md5_of(path, part_bytes)[0] == found[1]:
            return True
    return False


def _md5_of(path: Path, part_bytes: int | None) -> tuple[str, int]:
    """The MD5 of the file, or of the MD5s of its parts; and how many those are."""
    sums = []
    with open(path, "rb") as file:
        while True:
            digest = hashlib.md5(usedforsecurity=False)
            left, read = part_bytes, 0
            while block := file.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
                digest.update(block)
                read += len(block)
                left = None if left is None else left - len(block)
            if part_bytes is None:
                return digest.hexdigest(), 1
            if not read:
                break
            sums.append(digest.digest())
    return hashlib.md5(b"".join(sums), usedforsecurity=False).hexdigest(), len(sums)


def open_bucket(name: str, endpoint: str | None) -> Bucket:
    """Credentials, region and the like come from the usual variables (AWS_ACCESS_KEY_ID, …), which
    the library reads. Raises InvalidRequest without the extra."""
    try:
        from obstore.store import S3Store
    except ModuleNotFoundError as missing:
        if missing.name != "obstore":
            raise
        message = "s3:// needs the extra: pip install 'firsthand[storage]'"
        raise InvalidRequest("model", message) from None
    options: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint}
    store = S3Store(
        name,
        client_options={
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "timeout": timedelta(seconds=60),
        },
        # Retries are ours: the library's do not see a body that ends early.
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=60)},
        **options,
    )
    return S3Bucket(name, store)


class S3Bucket:
    """A bucket by the library's client."""

    def __init__(self, name: str, store: Any) -> None:
        self._name = name
        self._store = store

    def list(self, prefix: str, most: int) -> Sequence[RemoteObject]:
        import obstore

        found: list[RemoteObject] = []
        try:
            for page in obstore.list(self._store, prefix):
                found += map(_remote, page)
                if len(found) > most:
                    break
        except Exception as error:
            raise self._failure(error, prefix) from error
        if len(found) > most:
            raise DownloadFailed(f"s3://{self._name}/{prefix}: more than {most} objects")
        return found

    def find(self, key: str) -> RemoteObject:
        import obstore

        try:
            return _remote(obstore.head(self._store, key))
        except Exception as error:
            raise self._failure(error, key) from error

    def read(self, key: str, start: int, stop: int, etag: str) -> bytes:
        import obstore

        try:
            options: Any = {"range": (start, stop), "if_match": f'"{etag}"'}
            found = obstore.get(self._store, key, options=options)
            content = bytes(found.bytes())
        except Exception as error:
            raise self._failure(error, key) from error
        if str(found.meta["e_tag"]).strip('"') != etag:
            raise ObjectChanged(f"{key} changed while it was fetched")
        return content

    def _failure(self, error: Exception, what: str) -> Exception:
        from obstore import exceptions

        text = re.sub(r"\s+", " ", str(error))[:300]
        where = f"s3://{self._name}/{what}"
        match error:
            case exceptions.PreconditionError():
                return ObjectChanged(f"{what} changed while it was fetched")
            case exceptions.NotFoundError() | FileNotFoundError():
                return ModelNotFound(f"{where}: the storage has no such bucket or object")
            case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
                return DownloadFailed(f"{where}: no access with the credentials of AWS_…")
            case _ if "NoSuchBucket" in text:  # which a list is told as a plain failure
                return ModelNotFound(f"{where}: the storage has no such bucket or object")
            case _:
                return PassingFailure(f"{where}: {text}")


def _remote(one: Any) -> RemoteObject:
    """As obstore tells of it."""
    return RemoteObject(one["path"], one["size"], str(one["e_tag"] or "").strip('"'))
