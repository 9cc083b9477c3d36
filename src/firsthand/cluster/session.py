"""This process and Ray: a Ray of its own on this machine, or one that is there.

Owns: how Ray is started and joined, what it may say here, its end.
May not know: replicas, requests.
Read next: `closed.py`, which goes before it; `owned.py`, what is owned by whom; `deployment.py`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from firsthand.checks import shown
from firsthand.cluster.closed import check_closed, check_version, close
from firsthand.cluster.owned import Claim, Note, claim, end_parts, own_folder, standing
from firsthand.config import set_for_libraries
from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.values import dataclass

LOOPBACK = "127.0.0.1"
NAMESPACE = "firsthand"
STORE_BYTES = 80 << 20  # tokens are small; weights do not go by it
START_ATTEMPTS = 3  # its parts wait seconds for each other, on a busy machine too
LOCAL_REPLICAS = 16  # room for so many on one machine: nobody else shares it
CONNECT_S = 3.0
QUIET = {"RAY_BACKEND_LOG_LEVEL": "fatal"}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """A Ray that this process has joined. `folder`: it is this process's own, with its files."""

    address: str
    folder: Path | None = None
    lock: int | None = None  # of the folder
    claim: Claim | None = None  # it is this machine's

    def end(self) -> None:
        """What this process started ends with it; also where Ctrl-C came while Ray was loaded,
        which cannot be loaded again then."""
        try:
            if (ray := sys.modules.get("ray")) is not None:
                ray.shutdown()
        finally:
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
            if self.lock is not None:
                os.close(self.lock)
            if self.claim is not None:
                self.claim.release()


def begin_local(home: Path, num_cpus: float, drain_s: float, room: int) -> Session:
    """This machine's cluster, which `found` finds by its note. Raises InvalidRequest where there is
    one, EngineUnavailable."""
    claimed = claim(home)
    try:
        begun = begin_own(home, max(1, round(LOCAL_REPLICAS * num_cpus)))
        claimed.tell(Note(begun.address, os.getpid(), drain_s, room))
    except BaseException:
        claimed.release()
        raise
    return Session(begun.address, begun.folder, begun.lock, claimed)


def begin_own(home: Path, num_cpus: int, *, quiet: bool = False) -> Session:
    """A Ray on this machine, for this process alone. `quiet`: its code in C++ writes nothing to the
    terminal. Raises EngineUnavailable."""
    close(home / "ray_token", alone=True)
    for attempt in range(START_ATTEMPTS):
        folder, lock = own_folder()
        session = Session("", folder, lock)
        try:
            _init(
                quiet,
                address="local",
                num_cpus=num_cpus,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder / "r"),  # which Ray opens to everybody
            )
            return Session(_gcs(), folder, lock)
        except BaseException as error:
            end_parts(folder)
            session.end()
            if not isinstance(error, EngineUnavailable) or attempt + 1 == START_ATTEMPTS:
                raise
    raise AssertionError("the last attempt has returned or raised")


def join(address: str, home: Path, *, quiet: bool = False) -> Session:
    """One that is there. Raises InvalidRequest unless it is closed, EngineUnavailable."""
    check_answers(address)
    close(home / "ray_token", alone=address.startswith(LOOPBACK))
    _init(quiet, address=address)
    session = Session(_gcs())
    try:
        check_closed(session.address, _dashboard())
    except InvalidRequest:
        session.end()
        raise
    return session


def own_address(home: Path) -> str:
    """Of this machine's cluster. Raises InvalidRequest, EngineUnavailable while it starts."""
    note = standing(home)
    if note is None:
        raise InvalidRequest("address", "none is given, and no cluster runs on this machine")
    return note.address


def check_answers(address: str) -> None:
    """Raises EngineUnavailable: Ray itself would ask for minutes; InvalidRequest."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isascii() and port.isdecimal()):
        raise InvalidRequest("address", f"is HOST:PORT: {address}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError):
        message = f"the cluster at {address} does not answer"
        raise EngineUnavailable(message) from None


def _init(quiet: bool, **options: Any) -> None:
    import ray
    from ray._private import worker

    check_version(ray.__version__)
    # Whatever Ray's parts report goes to every driver's terminal, though `log_to_driver` is off.
    worker.print_to_stdstream = _report
    try:
        with _silent() if quiet else nullcontext():
            ray.init(
                namespace=NAMESPACE,
                log_to_driver=False,
                configure_logging=False,
                **options,
            )
    except Exception as error:  # of its own class, where a part of it is late
        raise EngineUnavailable(f"Ray: {shown(error)}") from error


@contextmanager
def _silent() -> Iterator[None]:
    """Ray's own code in C++ tells the terminal what it takes for errors, also that an actor cannot
    be started again in a case which is none of ours; and first that it shall tell nothing."""
    set_for_libraries(QUIET, given=QUIET)
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _report(told: Mapping[str, Any], ignore_prefix: bool) -> None:
    """The first line of it, in our log."""
    lines = _COLOURS.sub("", "\n".join(map(str, told.get("lines", ())))).strip().splitlines()
    if lines:
        log.info("Ray: %s", lines[0])


def _gcs() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def _dashboard() -> str | None:
    """Where it listens, if there is one."""
    from ray._private.worker import get_dashboard_url

    return get_dashboard_url() or None
