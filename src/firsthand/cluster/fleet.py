"""The engines of one model as its service sees them: one, wherever its replicas are.

Owns: the links to the replicas, whether any answers, and that a request whose replica is lost goes
on at another one.
May not know: Ray (`deployment.py`), text, who asks.
Read next: `../generation/engines.py`, the protocol that this keeps; `sending.py` (one request on
its way), `link.py`, `rotation.py`.

A request is sent with the tokens that it has already, and gets its draws by (seed, position) alone:
so whichever replica goes on, the rest has the bits that it would have had.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from firsthand.checks import shown
from firsthand.cluster.calls import Calls, Deploys, look_at, who_runs
from firsthand.cluster.counting import whole_step
from firsthand.cluster.link import Link
from firsthand.cluster.rotation import Rotation, Routing
from firsthand.cluster.sending import Sending, only
from firsthand.cluster.ticket import Ticket
from firsthand.cluster.told import Told, replica_of
from firsthand.cluster.wire import (
    DOOR_MARK,
    Alive,
    End,
    Open,
    ReplicaOptions,
    Tell,
    name_of,
    packed,
    unpacked,
)
from firsthand.engine.facts import StepFacts
from firsthand.errors import (
    CapacityExceeded,
    EngineClosed,
    EngineLost,
    EngineSlept,
    EngineUnavailable,
    FirsthandError,
    InvalidRequest,
)
from firsthand.generation.frames import (
    Abort,
    Disturb,
    EngineFacts,
    LoadModel,
    Look,
    Pace,
    Stepped,
    from_fault,
)
from firsthand.generation.remote_stream import RemoteStream
from firsthand.generation.service_values import Replicas, Status
from firsthand.generation.watch import Watch
from firsthand.processes import boot_id
from firsthand.request import Request, TokenEvent
from firsthand.scheduling.limits import check_fits, check_request
from firsthand.scheduling.picture import Picture

SCOUT_S = 0.5  # between two looks at who runs
ALIVE_TURNS = 10  # looks between two signs of this door
ANSWER_S = 5.0
_PLANNED = {Status.CLOSED: EngineClosed, Status.ASLEEP: EngineSlept}

log = logging.getLogger(__name__)


class Fleet:
    """As `generation.remote.Remote`, over the replicas that `deploy` gives."""

    def __init__(
        self,
        deploy: Deploys,
        routing: Routing,
        load: LoadModel,
        watch: Watch,
        max_requests: int,
        on_step: Callable[[StepFacts], None],
        on_end: Callable[[Request], None],
        on_events: Callable[[tuple[TokenEvent, ...]], None] = lambda events: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._deploy = deploy
        self._options = ReplicaOptions(
            load.model, load.options, watch.hang_s, max_requests, load.chaos
        )
        self._max_requests = max_requests
        self._on_step, self._on_end, self._on_events = on_step, on_end, on_events
        self._clock = clock
        self.is_lost = False  # Ray replaces replicas; a new door would find the same ones
        self.door = uuid.uuid4().hex[:8]
        self._numbers = count()
        self._here = boot_id()
        self._calls: Calls | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sendings: dict[str, Sending] = {}  # by the request's id
        self._by_wire: dict[str, Sending] = {}
        self._settled = asyncio.Event()
        self._fault: FirsthandError | None = None
        self._was_ready = self._has_nobody = False
        self.rotation = Rotation(routing, clock)
        self.links: dict[str, Link] = {}
        self._told = Told(self.links, clock)
        self.num_moved = 0  # requests that went on at another replica
        self.num_lost = 0  # links
        self.status = Status.ASLEEP
        self.reason = ""
        self.since_s = clock()
        self.last_step_s: float | None = None
        self.pace = Pace()

    @property
    def facts(self) -> EngineFacts | None:
        return self._told.facts

    @property
    def picture(self) -> Picture | None:
        return self._told.picture(name_of)

    @property
    def replicas(self) -> Replicas:
        each = tuple(
            replica_of(link, self.rotation.is_in(name), self._num_at(name))
            for name, link in self.links.items()
        )
        return Replicas(each, self.num_moved, self.num_lost)

    @property
    def pid(self) -> int | None:
        return None

    @property
    def progress(self) -> float | None:
        return None

    @property
    def silent_s(self) -> float | None:
        return self._told.silent_s

    @property
    def stalls_s(self) -> float:
        return self._told.stalls_s

    @property
    def num_restarts(self) -> int:
        return self.num_lost + self._told.num_restarts

    @property
    def memory_short(self) -> bool:
        return self._told.memory_short

    @property
    def peak_rss_bytes(self) -> int:
        return self._told.peak_rss_bytes

    def start(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._settled.clear()
            self._was_ready = self._has_nobody = False
            self._set(Status.LOADING, "the replicas are being started")
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def wait_ready(self) -> None:
        await self._settled.wait()
        if not self.status.takes_requests:
            raise self._fault or EngineUnavailable(self._why_not())

    async def stop(self, status: Status, reason: str) -> None:
        self._end(status, reason)
        calls, self._calls = self._calls, None
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if calls is not None:
            await calls.remove()

    def cut(self, reason: str) -> None:
        self._end(Status.CLOSED, reason)

    def _end(self, status: Status, reason: str) -> None:
        self._set(status, reason)
        self._settled.set()
        for task in (self._keeper, *self._followers.values()):
            if task is not None:
                task.cancel()
        self._keeper = None
        kind = _PLANNED[status]
        for sending in list(self._sendings.values()):
            sending.fail(kind(f"the engines were ended with this request: {reason}"))

    async def _keep(self) -> None:
        """Replicas are started; then, for ever, who runs gets a link."""
        try:
            self._calls = calls = await self._deploy(self._options)
        except Exception as error:
            known = error if isinstance(error, FirsthandError) else None
            self._fault = known or EngineUnavailable(shown(error))
            self._set(Status.FAILED, str(self._fault))
            self._settled.set()
            return
        turns = count()
        while self.links or self.status is not Status.CLOSED:
            names = await who_runs(calls, SCOUT_S, self._hear)
            if names is not None or self._has_nobody:
                self._follow(calls, names or ())
            if self._was_ready and self._told.all_leave and not await calls.is_wanted():
                self._retire()
            self._look()
            if next(turns) % ALIVE_TURNS == 0:
                for name in self.links:
                    self._tell(Alive(self.door), name)
            await asyncio.sleep(SCOUT_S)

    def _hear(self, names: Sequence[str]) -> None:
        self._has_nobody = not names

    def _retire(self) -> None:
        """All replicas were told to end: what one has it finishes, nothing else begins."""
        self._set(Status.CLOSED, "the replicas were told to end")
        for sending in list(self._sendings.values()):
            if not sending.is_routed:
                sending.fail(EngineClosed(self._why_not()))

    def _follow(self, calls: Calls, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.links:
                taken = {link.slot for link in self.links.values()}
                slot = next(one for one in count() if one not in taken)
                link = self.links[name] = Link(name, slot, self._here, self._clock)
                task = asyncio.ensure_future(self._follow_one(calls, link))
                self._followers[name] = task
                task.add_done_callback(look_at)
        for name, link in list(self.links.items()):
            link.is_leaving = name not in names
            if link.is_leaving and not self._num_at(name):
                self._followers[name].cancel()

    async def _follow_one(self, calls: Calls, link: Link) -> None:
        reason = "it has gone"
        try:
            ticket = Ticket(packed(Open(self.door)), only(link.name))
            await link.follow(calls.link(ticket), self._take)
        except asyncio.CancelledError:
            raise
        except FirsthandError as error:
            reason = str(error)
        except Exception as error:
            reason = f"its link ended: {type(error).__name__}"
        finally:
            self._lost(link, reason)

    def _lost(self, link: Link, reason: str) -> None:
        del self.links[link.name], self._followers[link.name]
        if link.is_leaving or self._keeper is None:
            self.rotation.forget(link.name)
        elif link.beat is not None:  # else it was lost before, and is asked in vain
            self.num_lost += 1
            self.rotation.lost(link.name)
            log.warning("replica %s was lost: %s", link.slot, reason)
        for sending in list(self._sendings.values()):
            if sending.is_at(link.name):
                sending.moves(EngineLost(f"replica {link.slot} was lost: {reason}"))

    def _look(self) -> None:
        """Whether anybody answers."""
        for name, link in self.links.items():
            if link.beat is not None:
                takes = link.beat.takes_requests
                (self.rotation.linked if takes else self.rotation.lost)(name)
        if self.rotation.num_reached and not self._told.all_leave:
            self._was_ready = True
            self._set(Status.READY, "")
            self._settled.set()
        elif self._was_ready and self.status is not Status.CLOSED:
            self._set(Status.RESTARTING, "no replica answers")

    def submit(self, request: Request) -> RemoteStream:
        one = next((link.beat.facts for link in self.links.values() if link.beat), None)
        if self._calls is None or not self._was_ready or one is None or self._told.all_leave:
            closed = self.status is Status.CLOSED
            raise (EngineClosed if closed else EngineUnavailable)(self._why_not())
        check_request(request, one.limits)
        check_fits(request, one.limits, one.num_blocks, one.block_size)
        if request.request_id in self._sendings:
            raise InvalidRequest("request_id", f"{request.request_id!r} is in progress")
        if len(self._sendings) >= self._max_requests:
            raise CapacityExceeded(f"{self._max_requests} requests are in progress already")
        stream = RemoteStream(request, self._abort)
        told = (self._last_step_s, self._next_id, self._ended)
        sending = Sending(stream, self.rotation, self._clock, *told)
        self._sendings[request.request_id] = sending
        task = asyncio.ensure_future(sending.send(self._calls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream

    def abort(self, request_id: str) -> bool:
        self._abort(request_id, None)
        return request_id in self._sendings

    def _abort(self, request_id: str, index: int | None) -> None:
        sending = self._sendings.get(request_id)
        if sending is None:
            return
        sending.wants_end(index)
        if sending.is_routed:
            self._tell(Abort(sending.wire_id, index), sending.replica)

    async def disturb(self, fault: Disturb) -> None:
        """Of the first replica. Raises InvalidRequest, EngineUnavailable."""
        if self._calls is None or not self.links:
            raise EngineUnavailable(self._why_not())
        name = min(self.links.values(), key=lambda link: link.slot).name
        answer = await self._calls.tell(Ticket(packed(Tell(fault)), only(name)))
        told = unpacked(answer, End).fault
        if told is not None:
            raise from_fault(told)

    def tell(self, message: Look | Pace) -> None:
        if isinstance(message, Pace):
            self.pace = message
        for name in self.links:
            self._tell(message, name)

    def _tell(self, message: Look | Pace | Abort | Alive, name: str) -> None:
        """Nobody waits for it. A replica that is lost need not be told."""

        async def call(calls: Calls) -> None:
            with suppress(Exception, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await calls.tell(Ticket(packed(Tell(message)), only(name)))

        if self._calls is not None:
            task = asyncio.ensure_future(call(self._calls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_id(self, sending: Sending) -> str:
        """A new one for each time that it is sent: whatever an earlier one still brings is told
        from it."""
        self._by_wire.pop(sending.wire_id, None)
        if sending.num_sent:
            self.num_moved += 1
        request_id = sending.stream.request.request_id
        wire_id = f"{self.door}{DOOR_MARK}{next(self._numbers)}{DOOR_MARK}{request_id}"
        self._by_wire[wire_id] = sending
        return wire_id

    def _last_step_s(self, name: str) -> float:
        link = self.links.get(name)
        return 0.0 if link is None else link.stepped_s

    def _num_at(self, name: str) -> int:
        """Open requests there."""
        return sum(one.is_at(name) for one in self._sendings.values())

    def _take(self, link: Link, stepped: Stepped) -> None:
        if stepped.facts is not None:
            self.last_step_s = self._clock()
            link.facts, link.stepped_s = stepped.facts, self._clock()
            others = [one.facts for one in self.links.values() if one is not link and one.facts]
            self._on_step(whole_step(stepped.facts, link.slot, others, name_of))
        found = [(self._by_wire.get(event.request_id), event) for event in stepped.events]
        taken = [
            (sending, event._replace(request_id=sending.stream.request.request_id))
            for sending, event in found
            if sending is not None
        ]
        self._on_events(tuple([event for _, event in taken]))
        for sending, event in taken:
            sending.take(event, link.name)

    def _ended(self, sending: Sending) -> None:
        self._by_wire.pop(sending.wire_id, None)
        del self._sendings[sending.stream.request.request_id]
        self._on_end(sending.stream.request)

    def _why_not(self) -> str:
        return f"no replica now ({self.status.value}): {self.reason}"

    def _set(self, status: Status, reason: str) -> None:
        if status is not self.status:
            self.since_s = self._clock()
        self.status, self.reason = status, reason


def fleet_of(deploy: Deploys, routing: Routing) -> Callable[..., Fleet]:
    """For `Service.start`."""
    return partial(Fleet, deploy, routing)
