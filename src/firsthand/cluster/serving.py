"""A server whose engines are replicas: the door, beside Ray and not inside it.

Owns: how the settings of a server become a place for replicas.
May not know: routes, guards, requests: they are the single server's, whole.
Read next: `../server/starting.py`, which this calls; `fleet.py`, its engines.

The door is a process of its own and no ingress of Ray Serve: so every limit of the listener, every
guard and every form is the same code as without Ray, no proxy stands before it, and no port of
Ray's is a caller's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from firsthand.cluster.deployment import Place, RayDeployer
from firsthand.cluster.fleet import fleet_of
from firsthand.cluster.rotation import Routing
from firsthand.memory.budget import part_of_limit
from firsthand.server.configured import Configured
from firsthand.server.starting import run, run_server


def serve(
    configured: Configured,
    reread: Callable[[], Configured],
    say: Callable[[str], None],
    place: Place,
    routing: Routing,
) -> int:
    """Until a signal. The exit code. Ray is there, and joined."""
    return run(run_server(configured, reread, say, fleet_of(RayDeployer(place), routing)))


def shared(configured: Configured, num_replicas: int, num_threads: int) -> Configured:
    """For replicas on one machine: each has its part of the cores, and of the memory where that was
    given as a share."""
    settings = configured.settings
    changes: dict[str, Any] = {}
    if settings.threads is None:
        changes["threads"] = num_threads
    changes["memory_limit"] = part_of_limit(settings.memory_limit, num_replicas)
    return Configured(replace(settings, **changes), configured.origins)
