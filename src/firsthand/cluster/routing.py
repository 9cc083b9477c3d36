"""The request router of Ray Serve: it asks the one who sends.

Owns: how a request names its replica to Ray Serve.
May not know: how a replica is chosen (`rotation.py`), what is sent.
Read next: `fleet.py`, whose tickets come here.

Ray Serve runs a router where requests are sent, so in the door's own process: it counts what is
open at each replica, keeps `max_ongoing_requests`, and hears first who has come and gone. What it
cannot hear is what becomes of a stream after it was routed. So the outcomes stay with the door, and
a request carries a ticket, by which the router asks in which order the replicas are to be tried.
On its way to another process a ticket is its payload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.serve.request_router import (
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from firsthand.cluster.ticket import Ticket


class TicketRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types here
    """What Ray Serve loads by its name, `ROUTER`."""

    _heard: Callable[[Sequence[str]], None] | None = None

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """That nobody runs any more is asked of nobody: it has to be told."""
        super().update_replicas(replicas)
        if self._heard is not None:
            self._heard([one.replica_id.unique_id for one in replicas])

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        ticket = None if pending_request is None else pending_request.args[0]
        if not isinstance(ticket, Ticket):
            return [candidate_replicas]
        self._heard = ticket.heard or self._heard
        running = {one.replica_id.unique_id: one for one in candidate_replicas}
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[running[name]] for name in ticket.order(list(running)) if name in running]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        ticket = pending_request.args[0]
        if isinstance(ticket, Ticket):
            ticket.routed(replica_id.unique_id)


ROUTER = f"{__name__}.{TicketRouter.__name__}"
