"""A model compared with its manifest, beside the load: what is not as it says is refused.

Owns: what is compared when, and which fault is told first.
May not know: the form of a manifest, how a model is loaded.
Read next: `manifest.py`, `sums.py`, `manifest_signing.py`; `generation/loading.py`, whose load this
goes beside.

Names and sizes are compared before anything is read. The hashes are taken by a thread while the
model loads, and remembered; a load ends only when they are right. Where a load fails because of a
file, the hash of a changed file is the fault that is told.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from firsthand.config import Environment
from firsthand.errors import (
    BadHash,
    BadSignature,
    CheckpointError,
    FirsthandError,
    InvalidRequest,
)
from firsthand.weights.manifest import (
    EMPTY,
    Manifest,
    ManifestFile,
    files_of,
    manifest_path,
    read_manifest,
)
from firsthand.weights.sums import Stopped, Sums


def sums_of(environment: Environment) -> Sums:
    return Sums(environment.home / "sums" if environment.pack_cache else None)


@contextmanager
def verified(
    model: Path, sums: Sums, max_file_bytes: int | None = None, *, trusted: Path | None = None
) -> Iterator[str | None]:
    """The hash of the model's manifest, None where it has none; at the end the files are as the
    manifest says. `max_file_bytes`: the hashes of larger ones are left to another load. `trusted`:
    a file of keys, of which one must have signed the manifest, which must be there then.

    Raises BadHash, BadSignature, CheckpointError.
    """
    manifest = read_manifest(model)
    if trusted is not None:
        check_signed(model, manifest, trusted)
    if manifest is None:
        yield None
        return
    check_files(model, manifest)
    wanted = [one for one in manifest.files if (max_file_bytes or one.size) >= one.size]
    comparing = _Comparing(model, wanted, sums)
    try:
        yield manifest.sha256
    except FirsthandError:
        comparing.wait()
        raise
    except BaseException:
        comparing.stop()
        raise
    comparing.wait()


def verify(model: Path, sums: Sums, trusted: Path | None = None) -> Manifest:
    """Compare every file now. Raises BadHash, BadSignature; CheckpointError, also where there is no
    manifest."""
    manifest = read_manifest(model)
    if manifest is None:
        raise CheckpointError(str(manifest_path(model)), "is not there, or no manifest of ours")
    with verified(model, sums, trusted=trusted):
        return manifest


def check_signed(model: Path, manifest: Manifest | None, trusted: Path) -> None:
    """Raises BadSignature; InvalidRequest where the library for signatures is not installed."""
    if manifest is None:
        message = f"is not there, and only models with a manifest signed by {trusted} are loaded"
        raise BadSignature(str(manifest_path(model)), message)
    try:
        from firsthand.weights.manifest_signing import check_signature
    except ModuleNotFoundError as missing:
        if not str(missing.name).startswith("cryptography"):
            raise
        raise InvalidRequest(
            "FIRSTHAND_TRUSTED_KEYS",
            "needs the extra signatures: pip install 'firsthand[signatures]'",
        ) from None
    check_signature(model, manifest, trusted, datetime.now(UTC))


def check_files(model: Path, manifest: Manifest) -> None:
    """Names and sizes. Raises BadHash for a file that is missing, of another size, or not named."""
    there = dict(files_of(model))
    where = str(manifest_path(model))
    for one in manifest.files:
        path = there.pop(one.path, None)
        if path is None:
            raise BadHash(where, f"{one.path} is not there; its hash should be {one.sha256}")
        size = os.stat(path).st_size
        if size != one.size:
            raise BadHash(str(path), _differs(one, _sum_or_none(path), size))
    if there:
        others = ", ".join(sorted(there)[:5])
        raise BadHash(where, f"names no {others}; write it anew if that belongs to the model")


def _sum_or_none(path: Path) -> str:
    with suppress(CheckpointError):
        return Sums(None).of(path)
    return "unknown"


def _differs(one: ManifestFile, actual: str, size: int | None) -> str:
    empty = ", that of an empty file" if actual == EMPTY else ""
    sizes = "" if size is None else f"; {size} bytes, not {one.size}"
    return f"its hash is {actual}{empty}, the manifest says {one.sha256}{sizes}"


class _Comparing:
    """Files compared in a thread. A first fault ends it."""

    def __init__(self, model: Path, files: list[ManifestFile], sums: Sums) -> None:
        self._fault: FirsthandError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(model, files, sums), name="verify", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Raises BadHash, CheckpointError."""
        self._thread.join()
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        self._stopped.set()

    def _run(self, model: Path, files: list[ManifestFile], sums: Sums) -> None:
        try:
            for one in files:
                path = model / one.path if model.is_dir() else model.with_name(one.path)
                actual = sums.of(path, self._stopped.is_set)
                if actual != one.sha256:
                    raise BadHash(str(path), _differs(one, actual, None))
        except Stopped:
            pass
        except FirsthandError as fault:
            self._fault = fault
