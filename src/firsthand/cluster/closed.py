"""Ray with its doors closed: whoever reaches a port of it can run anything.

Owns: the token and who has it, the versions that are refused, and the proof that a cluster is
closed before anything is entrusted to it.
May not know: replicas, models.
Read next: `deployment.py`; docs/cluster.md on what is open where.

Of a cluster that this process starts, everything wants the token, and there is no dashboard and so
no interface for jobs: Ray starts a process called `dashboard` all the same, which has no port. All
listens on loopback but one port of each replica, which Ray Serve opens on every address; it wants
the token too. One that is joined is asked first, without a token: it must refuse.
"""

from __future__ import annotations

import http.client
import os
import secrets
from contextlib import suppress
from pathlib import Path

from firsthand.config import set_for_libraries
from firsthand.errors import InvalidRequest

LEAST_VERSION = (2, 56, 0)
TOKEN_BYTES = 32
ASK_S = 5.0
OPEN_PATHS = ("/api/jobs/", "/api/serve/applications/", "/api/version", "/nodes?view=summary")
VERBS = ("GET", "POST", "PUT", "DELETE")
REPLICA_CALL = "/ray.serve.ASGIService/HandleRequest"
GCS_CALL = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"

# Of Ray and Ray Serve: tokens; no reports to its makers; its log goes to its own files; requests go
# out on the loop that serves them, and come in on the one that runs the engine, which spares two
# changes of thread for each. Replicas are no background work: without niceness. Whoever is
# called is in the cluster: no proxy for the web leads there (empty is none).
VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "grpc_proxy": "",
}
# Ray takes 127.0.0.1 for a mistake and listens elsewhere, but where it may have no cluster.
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def close(token: Path, *, alone: bool) -> None:
    """Before Ray is loaded: tokens are on, and this machine's is in `token` unless the operator
    names another one by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH. `alone`: one machine, by loopback.
    """
    _make(token)
    set_for_libraries(VARIABLES | (ALONE if alone else {}))
    set_for_libraries({"RAY_AUTH_TOKEN_PATH": str(token)}, given=("RAY_AUTH_TOKEN_PATH",))


def check_version(version: str) -> None:
    """Raises InvalidRequest for one whose control plane is known to be open."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise InvalidRequest("ray", f"{version} has holes that are known; at least {least}")


def check_closed(gcs: str, dashboard: str | None) -> None:
    """Raises InvalidRequest unless both refuse who has no token."""
    if dashboard:
        for path in OPEN_PATHS:
            for verb in VERBS:
                status = _status(dashboard, verb, path)
                if status is not None and status not in (401, 403):
                    raise InvalidRequest(
                        "address",
                        f"its dashboard answers {verb} {path} without a token (HTTP {status}): "
                        "start it with RAY_AUTH_MODE=token",
                    )
    if not refuses(gcs, GCS_CALL):
        message = "it takes calls without a token: start it with RAY_AUTH_MODE=token"
        raise InvalidRequest("address", message)


def _make(token: Path) -> None:
    token.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        file = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "w", encoding="ascii") as out:
            out.write(secrets.token_hex(TOKEN_BYTES))


def _status(address: str, verb: str, path: str) -> int | None:
    """None: nobody answers there, at least not in HTTP."""
    connection = http.client.HTTPConnection(address, timeout=ASK_S)
    try:
        connection.request(verb, path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def refuses(address: str, name: str) -> bool:
    """Whether a call of that name without a token is refused for that."""
    import grpc

    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(name, bytes, bytes)
        try:
            call(b"", timeout=ASK_S)
        except grpc.RpcError as error:
            refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
            return error.code() in refused
    return False
