"""Replicas without Ray: the same class, called in this process, and lost on purpose.

Owns: what Ray Serve would do between a ticket and a replica. May not know: what is sent. Read next:
`src/firsthand/cluster/deployment.py`, the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

from firsthand.cluster.replica import EngineReplica
from firsthand.cluster.ticket import Ticket
from firsthand.cluster.wire import ReplicaOptions, packed

T = TypeVar("T")
RETRY_S = 0.02


class LostReplica(Exception):
    """As Ray's, of an actor that has died."""


class InProcess:
    """Calls to replicas of this process: `lose` one; the `running` are those that Ray Serve tells
    of; the `silent` say nothing, the `deaf` take no call."""

    def __init__(self, options: ReplicaOptions) -> None:
        self._options = options
        self.replicas: dict[str, EngineReplica] = {}
        self.running: set[str] = set()
        self.silent: set[str] = set()
        self.deaf: set[str] = set()
        self.is_cursed = False  # whoever takes a request is lost by it
        self.is_deleted = False
        self._ends: dict[str, asyncio.Event] = {}
        self.sent: list[str] = []

    async def join(self, name: str) -> None:
        replica = EngineReplica(packed(self._options))
        await replica.reconfigure({})
        self.replicas[name] = replica
        self._ends[name] = asyncio.Event()
        self.running.add(name)

    async def lose(self, name: str) -> None:
        """At once, with all that it has."""
        self.running.discard(name)
        self._ends[name].set()
        await self.replicas[name].end()

    async def run(self, ticket: Ticket) -> bytes:
        name = await self._chosen(ticket)
        while name in self.deaf:
            await asyncio.sleep(RETRY_S)
        self.sent.append(name)
        ticket.routed(name)
        if self.is_cursed:
            raise LostReplica(name)
        return await self._unless_lost(name, anext(self.replicas[name].run(ticket.payload)))

    async def tell(self, ticket: Ticket) -> bytes:
        name = await self._chosen(ticket)
        return await self._unless_lost(name, anext(self.replicas[name].tell(ticket.payload)))

    async def link(self, ticket: Ticket) -> AsyncIterator[bytes]:
        name = await self._chosen(ticket)
        pieces = self.replicas[name].link(ticket.payload)
        try:
            while True:
                piece = await self._unless_lost(name, anext(pieces))
                while name in self.silent:
                    await asyncio.sleep(RETRY_S)
                yield piece
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    async def is_wanted(self) -> bool:
        return not self.is_deleted

    async def remove(self) -> None:
        for name in list(self.replicas):
            await self.lose(name)

    async def _chosen(self, ticket: Ticket) -> str:
        while True:
            order = ticket.order(sorted(self.running))
            if order:
                return order[0]
            await asyncio.sleep(RETRY_S)

    async def _unless_lost(self, name: str, call: Awaitable[T]) -> T:
        ended = asyncio.ensure_future(self._ends[name].wait())
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait((ended, task), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise LostReplica(name)
            return task.result()
        finally:
            ended.cancel()
            task.cancel()


class Deployer:
    """Gives so many replicas; `calls` are those of the last model."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self.calls: InProcess | None = None

    async def __call__(self, options: ReplicaOptions) -> InProcess:
        self.calls = InProcess(options)
        await asyncio.gather(*(self.calls.join(f"r{n}") for n in range(self._num_replicas)))
        return self.calls
