"""A replica: an engine's process, and what Ray Serve calls to reach it.

Owns: which requests of which door are open here, what goes to each door, whether this replica is
well.
May not know: text, HTTP, the other replicas, who chose it.
Read next: `../generation/remote.py`, the engine's process; `wire.py`, the messages; `link.py`, the
other end.

A request is one call, which lasts until it has ended: so Ray Serve counts what is open, and a
replica that is to go ends when there is none left. Its tokens go another way. Of every step a door
gets one piece, by the link that it keeps open, whatever number of requests were in it: what a step
brought stays in order, and costs as much as one token would. A door that is heard no more, or that
opens its link anew, has left: what it had asked for is ended.

Steps are computed in a process beside, as in a single server: a crash in native code takes no actor
of Ray's with it, and the process is back sooner than one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

from firsthand.cluster.node_model import bring
from firsthand.cluster.own_load import OwnLoad
from firsthand.cluster.wire import (
    Alive,
    Beat,
    Begin,
    End,
    FromReplica,
    Open,
    ReplicaOptions,
    Tell,
    door_of,
    joined,
    packed,
    unpacked,
)
from firsthand.engine.facts import StepFacts
from firsthand.errors import EngineUnavailable, FirsthandError
from firsthand.generation.frames import (
    Abort,
    Disturb,
    LoadModel,
    Look,
    Pace,
    Seen,
    Stepped,
    to_fault,
)
from firsthand.generation.remote import Remote
from firsthand.generation.remote_stream import RemoteStream
from firsthand.generation.service_values import Status
from firsthand.generation.watch import Watch
from firsthand.processes import boot_id, processor_s
from firsthand.request import Request, TokenEvent

BEAT_S = 1.0
LOOK_S = 0.02
DOOR_S = 20.0  # a door that was not heard for so long is none
MAX_UNSENT = 65536  # pieces, to a door that reads nothing


class Outbox:
    """What waits to be given to one door, in order."""

    def __init__(self) -> None:
        self._messages: list[FromReplica] = []
        self._filled = asyncio.Event()
        self.is_closed = False

    def put(self, message: FromReplica) -> None:
        self._messages.append(message)
        self._filled.set()
        if len(self._messages) > MAX_UNSENT:
            self.close()

    def close(self) -> None:
        self.is_closed = True
        self._filled.set()

    async def take(self) -> list[FromReplica]:
        """All there is; nothing, when there was nothing for as long as a beat."""
        try:
            async with asyncio.timeout(BEAT_S):
                await self._filled.wait()
        except TimeoutError:
            return []
        self._filled.clear()
        messages, self._messages = self._messages, []
        return messages


class EngineReplica:
    """The class of the deployment. Calls take bytes, and give them in pieces: one that gives pieces
    says at once, by Ray Serve, that it was taken."""

    def __init__(self, options: bytes) -> None:
        self._options = unpacked(options, ReplicaOptions)
        self._remote: Remote | None = None
        self._outboxes: dict[str, Outbox] = {}
        self._heard_s: dict[str, float] = {}  # the doors, when they were heard last
        self._streams: dict[str, RemoteStream] = {}
        self._facts: StepFacts | None = None  # of the last step
        self._fresh: StepFacts | None = None  # and whether its events have not come yet
        self._machine = boot_id()
        load = self._options.load
        num_cores = load.threads or os.cpu_count() or 1
        self._load = OwnLoad(num_cores, load.device, time.perf_counter)

    async def reconfigure(self, _: object) -> None:
        """Ray Serve calls it before the first request: the model is loaded here."""
        if self._remote is None:
            options = self._options
            packs = options.load.executor == "native" and options.load.pack_cache
            form = options.load.quantization if packs else None
            await asyncio.to_thread(bring, options.model, form, options.version)
            self._remote = Remote(
                LoadModel(options.model, options.load, options.chaos),
                Watch(hang_s=options.hang_s),
                options.max_requests,
                on_step=self._on_step,
                on_end=lambda request: None,
                on_events=self._on_events,
            )
            self._remote.start()
            await self._remote.wait_ready()

    async def run(self, payload: bytes) -> AsyncIterator[bytes]:
        """One request, until it has ended: then one piece. A cancelled call ends it."""
        yield packed(await self._ended(unpacked(payload, Begin)))

    async def _ended(self, begin: Begin) -> End:
        request_id = begin.request.request_id
        try:
            if door_of(request_id) not in self._outboxes:
                raise EngineUnavailable("this replica has no link to the door that asks")
            stream = self._streams[request_id] = self.engine.submit(_timed(begin))
            self._load.asked(request_id)
        except FirsthandError as error:
            return End(to_fault(error), taken=False)
        try:
            await _read(stream)
        except FirsthandError as error:
            return End(to_fault(error))
        finally:
            stream.close()
            del self._streams[request_id]
            self._load.ended(request_id)
        return End()

    async def link(self, payload: bytes) -> AsyncIterator[bytes]:
        """What a door gets of its requests, until it leaves; a beat at least once a second."""
        door = unpacked(payload, Open).door
        before = self._outboxes.pop(door, None)
        if before is not None:
            before.close()
        self._forget(door)
        outbox = self._outboxes[door] = Outbox()
        self._heard_s[door], told_s = time.monotonic(), 0.0
        try:
            while not outbox.is_closed:
                messages = await outbox.take() if told_s else []
                now_s = time.monotonic()
                if now_s - self._heard_s[door] > DOOR_S:
                    break
                if not messages or now_s - told_s >= BEAT_S:
                    told_s = now_s
                    messages.append(self._beat())
                yield joined(messages)
        finally:
            if self._outboxes.get(door) is outbox:
                del self._outboxes[door], self._heard_s[door]
                self._forget(door)

    async def tell(self, payload: bytes) -> AsyncIterator[bytes]:
        """An abort, a look, a pace, a fault on purpose; or that a door is there. One piece."""
        yield packed(await self._told(unpacked(payload, Tell).message))

    async def _told(self, message: Abort | Look | Pace | Disturb | Alive) -> End:
        try:
            match message:
                case Abort(request_id=request_id, index=index):
                    stream = self._streams.get(request_id)
                    if stream is not None and index is None:
                        self.engine.abort(request_id)
                    elif stream is not None and index is not None:
                        stream.close_index(index)
                case Disturb():
                    await self.engine.disturb(message)
                case Pace():
                    self.engine.tell(message)
                case Alive(door=door):
                    self._heard_s[door] = time.monotonic()
                case Look():
                    await self._look()
        except FirsthandError as error:
            return End(to_fault(error))
        return End()

    @property
    def doors(self) -> set[str]:
        """Those that have a link."""
        return set(self._outboxes)

    async def end(self) -> None:
        """For whoever runs it outside Ray, whose processes end with it."""
        await self.engine.stop(Status.CLOSED, "the replica ends")

    def check_health(self) -> None:
        """Ray Serve replaces a replica whose engine will not be started again. Raises."""
        if self.engine.is_lost or self.engine.status in (Status.FAILED, Status.CLOSED):
            raise EngineUnavailable(self.engine.reason)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For the policy of autoscaling; requests are those of the engine's last step."""
        if self._remote is None:
            return {}
        facts = self._facts if self._streams else None
        running, waiting = (facts.num_running, facts.num_waiting) if facts else (0, 0)
        pids = (os.getpid(), self._remote.pid)
        return self._load.report(running, waiting, [pid for pid in pids if pid is not None])

    async def _look(self) -> None:
        """Every door gets the picture, soon after it was taken."""
        remote = self.engine
        before = remote.picture
        remote.tell(Look())
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_S):
                while remote.picture is before:
                    await asyncio.sleep(LOOK_S)
        if remote.picture is not None:
            for outbox in self._outboxes.values():
                outbox.put(Seen(remote.picture))

    @property
    def engine(self) -> Remote:
        if self._remote is None:
            raise EngineUnavailable("the model is not loaded yet")
        return self._remote

    def _on_step(self, facts: StepFacts) -> None:
        self._facts = self._fresh = facts

    def _on_events(self, events: tuple[TokenEvent, ...]) -> None:
        """Each door gets those of its requests, with the facts of their step."""
        fresh, self._fresh = self._fresh, None
        self._load.stepped(events)
        for door, outbox in self._outboxes.items():
            own = tuple(event for event in events if door_of(event.request_id) == door)
            if own or fresh is not None:
                outbox.put(Stepped(own, fresh))

    def _forget(self, door: str) -> None:
        for request_id in [one for one in self._streams if door_of(one) == door]:
            self.engine.abort(request_id)

    def _beat(self) -> Beat:
        remote = self.engine
        pids = (os.getpid(), remote.pid)
        return Beat(
            machine=self._machine,
            clock_s=time.perf_counter(),
            pid=remote.pid,
            takes_requests=remote.status.takes_requests,
            reason=remote.reason,
            num_restarts=remote.num_restarts,
            peak_rss_bytes=remote.peak_rss_bytes,
            memory_short=remote.memory_short,
            stalled_s=remote.stalls_s,
            silent_s=remote.silent_s or 0.0,
            cpu_s=sum(processor_s(pid) or 0.0 for pid in pids if pid is not None),
            facts=remote.facts,
        )


def _timed(begin: Begin) -> Request:
    """Its deadline on this machine's clock."""
    if begin.left_s is None:
        return begin.request
    return replace(begin.request, deadline_s=time.perf_counter() + begin.left_s)


async def _read(stream: RemoteStream) -> None:
    """To the end. Raises what ended it."""
    with suppress(StopAsyncIteration):
        while True:
            await stream.get()
