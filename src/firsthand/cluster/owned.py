"""What a process owns on this machine for as long as it lives: a cluster, and a folder of Ray's.

Owns: the note by which a cluster is found again, whether its owner lives, how that is asked to end;
folders that dead processes have left.
May not know: Ray, replicas.
Read next: `session.py`, which starts what is owned here.

That an owner lives is a lock on a file, which ends with its process however that ends: a number of
a process may be another one's by now.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.processes import children
from firsthand.values import dataclass
from firsthand.weights.places import write_atomically

STARTING = "this machine's cluster is being started: ask again when it is, or end its process"
NOTE, LOCK, STOP = "cluster.json", "cluster.lock", "cluster.stop"
PREFIX = "fh-ray-"
OWNER = "owner"
LOOK_S = 0.1
TELL_S = 10.0
OLD_S = 60.0  # of a folder without a lock: its owner has gone, and a process of Ray's came late
SPARE_S = 30.0  # for the end itself, beside the drain


class Note(msgspec.Struct, frozen=True):
    """Where this machine's cluster is. `pid`: of its door; `drain_s`: how long that may finish what
    it has; `room`: so many replicas at most."""

    address: str
    pid: Annotated[int, msgspec.Meta(gt=1)]  # no other number is a process to be told to end
    drain_s: float
    room: int


@dataclass(frozen=True, slots=True)
class Claim:
    """This process has the cluster of this machine."""

    home: Path
    lock: int

    def tell(self, note: Note) -> None:
        write_atomically(self.home / NOTE, msgspec.json.encode(note))

    def release(self) -> None:
        (self.home / NOTE).unlink(missing_ok=True)
        os.close(self.lock)


def claim(home: Path) -> Claim:
    """Raises InvalidRequest where another process has it."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = locked(home / LOCK)
    if lock is None:
        note = _read(home)
        if note is None:
            raise InvalidRequest("local", STARTING)
        message = f"this machine's cluster runs at {note.address}, by {note.pid}"
        raise InvalidRequest("local", f"{message}: `firsthand cluster stop` ends it")
    (home / NOTE).unlink(missing_ok=True)
    return Claim(home, lock)


def found(home: Path) -> Note | None:
    """Of this machine's cluster. A note whose owner has gone is removed."""
    note = _read(home)
    lock = None if note is None else locked(home / LOCK)
    if lock is None:
        return note
    (home / NOTE).unlink(missing_ok=True)
    os.close(lock)
    return None


def standing(home: Path) -> Note | None:
    """`found`, for who asks something of it. Raises EngineUnavailable while it is being started."""
    note = found(home)
    if note is None and (home / LOCK).exists():
        lock = locked(home / LOCK, create=False)
        if lock is None:
            raise EngineUnavailable(STARTING)
        os.close(lock)
    return note


def end(home: Path, note: Note, tell: Callable[[str], None]) -> None:
    """Its door is told to end, as by SIGTERM, and waited for; one that is ending already is only
    waited for. Raises EngineUnavailable where it has not ended in time, InvalidRequest."""
    first = locked(home / STOP)
    began_s = told_s = time.monotonic()
    try:
        if first is not None:
            with suppress(ProcessLookupError):
                os.kill(note.pid, signal.SIGTERM)
        tell(f"{note.address}: what is under way is finished, {note.drain_s:g} s at most")
        while found(home) == note:
            now_s = time.monotonic()
            if now_s - began_s > note.drain_s + SPARE_S:
                message = f"the cluster at {note.address} has not ended: its process is {note.pid}"
                raise EngineUnavailable(message)
            if now_s - told_s > TELL_S:
                told_s = now_s
                tell(f"{note.address}: its door ({note.pid}) has requests, {now_s - began_s:.0f} s")
            time.sleep(LOOK_S)
    except PermissionError:
        raise InvalidRequest("cluster", f"process {note.pid} is another user's") from None
    finally:
        if first is not None:
            os.close(first)


def own_folder() -> tuple[Path, int]:
    """A new one for Ray, and its lock. What dead processes have left is removed. Nobody else may
    look into it; its path is short, because sockets are in it."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = left.lstat()
            if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid():
                continue
            if not (left / OWNER).exists():
                if time.time() - status.st_mtime > OLD_S:
                    shutil.rmtree(left, ignore_errors=True)
                continue
            lock = locked(left / OWNER, create=False)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = locked(folder / OWNER)
    if lock is None:
        raise EngineUnavailable(f"{folder}: taken by another process")
    return folder, lock


def end_parts(folder: Path) -> None:
    """Ray forgets the parts of a start that failed; they would live as long as this process."""
    for pid, line in children(os.getpid()):
        if str(folder) in line:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def locked(path: Path, *, create: bool = True) -> int | None:
    """A descriptor with the lock of that file; None: another process has it."""
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _read(home: Path) -> Note | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((home / NOTE).read_bytes(), type=Note)
    return None
