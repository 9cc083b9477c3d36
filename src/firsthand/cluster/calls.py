"""What a fleet asks of whatever runs its replicas: the seam above Ray.

Owns: `Calls` and `Deploys`; how one learns who runs. May not know: Ray, what a payload says.
Read next: `fleet.py`, which calls; `deployment.py`, which carries the calls out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from firsthand.cluster.ticket import Ticket
from firsthand.cluster.wire import ReplicaOptions


class Calls(Protocol):
    """Calls to the replicas of one deployment, each to one that its ticket allows. Any exception
    means that it was not carried out, or was cut."""

    async def run(self, ticket: Ticket) -> bytes: ...
    async def tell(self, ticket: Ticket) -> bytes: ...
    def link(self, ticket: Ticket) -> AsyncIterator[bytes]: ...
    async def is_wanted(self) -> bool:
        """Not after somebody has ended all replicas, for good."""
        ...

    async def remove(self) -> None:
        """The replicas end."""


class Deploys(Protocol):
    async def __call__(self, options: ReplicaOptions) -> Calls:
        """Replicas that run this, once the first of them do. Raises FirsthandError."""


async def who_runs(
    calls: Calls, limit_s: float, heard: Callable[[Sequence[str]], None]
) -> Sequence[str] | None:
    """The replicas that Ray Serve has told its router of, by a ticket that takes none. None: it
    does not say, or there are none. `heard` is told of changes."""
    seen: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()

    def order(names: Sequence[str]) -> Sequence[str]:
        if not seen.done():
            seen.set_result(names)
        return ()

    call = asyncio.ensure_future(calls.tell(Ticket(b"", order, heard=heard)))
    call.add_done_callback(look_at)
    try:
        async with asyncio.timeout(limit_s):
            return await seen
    except TimeoutError:
        return None
    finally:
        call.cancel()


def look_at(task: asyncio.Future[Any]) -> None:
    """A callback: what went wrong was told where it matters."""
    if not task.cancelled():
        task.exception()
