"""This process and Ray: a Ray of its own on this machine, or one that is there.

Owns: how Ray is started and joined, where a Ray of this machine is found again, its end.
May not know: replicas, requests.
Read next: `closed.py`, which goes before it; `deployment.py`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from firsthand.checks import shown
from firsthand.cluster.closed import check_closed, check_version, close
from firsthand.errors import EngineUnavailable, InvalidRequest
from firsthand.values import dataclass

LOOPBACK = "127.0.0.1"
NAMESPACE = "firsthand"
STORE_BYTES = 80 << 20  # tokens are small; weights do not go by it
START_ATTEMPTS = 3  # its parts wait seconds for each other, on a busy machine too
LOCAL_REPLICAS = 16  # room for so many on one machine: nobody else shares it


@dataclass(frozen=True, slots=True)
class Session:
    """A Ray that this process has joined. `folder`: it is this process's own, with its files."""

    address: str
    folder: Path | None
    note: Path | None = None

    def end(self) -> None:
        """What this process started ends with it. May be called again."""
        import ray

        ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.note is not None:
            self.note.unlink(missing_ok=True)


def begin_local(home: Path, num_cpus: float) -> Session:
    """A Ray on this machine alone, which `found` finds by its note. Raises EngineUnavailable."""
    begun = begin_own(home, max(1, round(LOCAL_REPLICAS * num_cpus)))
    note = home / "cluster.json"
    note.write_text(json.dumps({"address": begun.address}), encoding="utf-8")
    return Session(begun.address, begun.folder, note)


def begin_own(home: Path, num_cpus: int) -> Session:
    """A Ray on this machine, for this process alone. Raises EngineUnavailable."""
    close(home / "ray_token", alone=True)
    for attempt in range(START_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix="fh-ray-"))  # a short path: sockets are in it
        session = Session("", folder)
        try:
            _init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder),
            )
            return Session(_gcs(), folder)
        except BaseException as error:
            session.end()
            if not isinstance(error, EngineUnavailable) or attempt + 1 == START_ATTEMPTS:
                raise
    raise AssertionError("the last attempt has returned or raised")


def join(address: str, home: Path) -> Session:
    """One that is there. Raises InvalidRequest unless it is closed, EngineUnavailable."""
    close(home / "ray_token", alone=address.startswith(LOOPBACK))
    _init(address=address)
    session = Session(_gcs(), None)
    try:
        check_closed(session.address, _dashboard())
    except InvalidRequest:
        session.end()
        raise
    return session


def found(home: Path) -> str:
    """The address of the one that this machine's `cluster serve --local` started. Raises
    InvalidRequest."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((home / "cluster.json").read_text(encoding="utf-8"))["address"])
    raise InvalidRequest("address", "none is given, and no cluster was started on this machine")


def _init(**options: Any) -> None:
    import ray

    check_version(ray.__version__)
    try:
        ray.init(
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            **options,
        )
    except Exception as error:  # of its own class, where a part of it is late
        raise EngineUnavailable(f"Ray: {shown(error)}") from error


def _gcs() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def _dashboard() -> str | None:
    """Where it listens, if there is one."""
    from ray._private.worker import get_dashboard_url

    return get_dashboard_url() or None
