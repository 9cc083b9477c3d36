"""What a fleet asks of whatever runs its replicas: the seam above Ray.

Owns: `Calls` and `Deploys`. May not know: Ray, what a payload says.
Read next: `fleet.py`, which calls; `deployment.py`, which carries the calls out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from firsthand.cluster.ticket import Ticket
from firsthand.cluster.wire import ReplicaOptions


class Calls(Protocol):
    """Calls to the replicas of one deployment, each to one that its ticket allows. Any exception
    means that it was not carried out, or was cut."""

    async def run(self, ticket: Ticket) -> bytes: ...
    async def tell(self, ticket: Ticket) -> bytes: ...
    def link(self, ticket: Ticket) -> AsyncIterator[bytes]: ...
    async def remove(self) -> None:
        """The replicas end."""


class Deploys(Protocol):
    async def __call__(self, options: ReplicaOptions) -> Calls:
        """Replicas that run this, once the first of them do. Raises FirsthandError."""
