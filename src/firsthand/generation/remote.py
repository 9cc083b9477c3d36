"""The service's side of the engine's process: start it, watch it, start it again.

Owns: one child after another, whether it lives and moves, and the streams that are open on it.
May not know: text, tokenizers, what the events become.
Read next: `child.py` (the other end), `process.py` (one child), `frames.py` (what passes),
`remote_stream.py` (what a request's events wait in).

One event loop owns it; there are no threads. A child that dies closes its connection, which is
seen at once. One that hangs answers no ping (`watch.py` tells it from one that is slow), and is
killed. Then every open stream raises EngineUnavailable, and the next child loads. The first load is
different: its error is the caller's, and it is not tried again unless asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from firsthand.checks import shown
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
from firsthand.generation.assembly import StepCost
from firsthand.generation.child_log import give_out
from firsthand.generation.frames import (
    Abort,
    Declined,
    Disturb,
    Disturbed,
    EngineFacts,
    Failed,
    Fault,
    FromChild,
    Loading,
    LoadModel,
    Logged,
    Look,
    Pace,
    Ping,
    Pong,
    Ready,
    Seen,
    Stepped,
    Submit,
    from_fault,
)
from firsthand.generation.process import EngineProcess
from firsthand.generation.remote_faults import RemoteFaults
from firsthand.generation.remote_stream import RemoteStream
from firsthand.generation.service_values import Replicas, Status
from firsthand.generation.watch import Watch, is_hung
from firsthand.request import Request, TokenEvent
from firsthand.scheduling.limits import check_fits, check_request
from firsthand.scheduling.picture import Picture

_PLANNED = {Status.CLOSED: EngineClosed, Status.ASLEEP: EngineSlept}


class Remote:
    """An engine in a process of its own. `start`, then `submit`; `stop` may be followed by `start`.

    `on_step` gets each step's facts, then `on_events` its events, before those are delivered;
    `on_end` gets each request that has ended (or was lost).
    """

    def __init__(
        self,
        load: LoadModel,
        watch: Watch,
        max_requests: int,
        on_step: Callable[[StepFacts], None],
        on_end: Callable[[Request], None],
        on_events: Callable[[tuple[TokenEvent, ...]], None] = lambda events: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._load = load
        self._watch = watch
        self._max_requests = max_requests
        self._on_step, self._on_end = on_step, on_end
        self._on_events = on_events
        self._clock = clock
        self.faults = RemoteFaults(clock)
        self._process: EngineProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._streams: dict[str, RemoteStream] = {}
        self._settled = asyncio.Event()  # ready, or will not be
        self._fault: FirsthandError | None = None  # of the child that loads, or loaded, now
        self._silent_s = 0.0
        self._longest = StepCost(0.0, 0.0)
        self._busy_since_s = 0.0  # with requests, since there were none
        self._ready_s: float | None = None  # when this child became ready
        self._was_ready = False  # this child, or one before it since `start`
        self._num_dead_starts = 0  # in a row: ended before they were ready, and told no reason
        self._watch_failed = False
        self.facts: EngineFacts | None = None  # of the last child that was ready
        self.status = Status.ASLEEP
        self.reason = ""
        self.since_s = clock()
        self.last_step_s: float | None = None
        self.num_restarts = 0
        self.peak_rss_bytes = 0
        self.memory_short = False
        self.progress: float | None = None
        self.picture: Picture | None = None  # the last one that was asked for
        self.pace = Pace()
        self.replicas: Replicas | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def silent_s(self) -> float | None:
        """Since the step loop last answered; None while there is none."""
        return None if self._ready_s is None else self._silent_s

    @property
    def stalled_s(self) -> float:
        """For how long there have been requests and no step; one that is being computed counts."""
        if not self._streams or self.pace.paused:
            return 0.0
        return self._clock() - max(self.last_step_s or 0.0, self._busy_since_s)

    @property
    def stalls_s(self) -> float:
        """The same of an engine that answers: a step that takes long is silent, and does not."""
        return self.stalled_s if self._silent_s <= self._watch.late_s else 0.0

    @property
    def is_lost(self) -> bool:
        """Another start will not help, a new process might. A load that tells why it fails (no
        model, no memory) would fail there too."""
        dead = self._watch_failed or self._num_dead_starts >= self._watch.max_dead_starts
        return dead and self.status in (Status.RESTARTING, Status.FAILED)

    @property
    def num_requests(self) -> int:
        """Open ones: handed over, their end not told yet."""
        return len(self._streams)

    def start(self) -> None:
        """Begin to load, unless a child is there."""
        if self._supervisor is None or self._supervisor.done():
            self._settled.clear()
            self._was_ready, self._watch_failed, self._num_dead_starts = False, False, 0
            self._set(Status.LOADING, "the model is being loaded")
            self._supervisor = asyncio.get_running_loop().create_task(self._supervise_safely())

    async def wait_ready(self) -> None:
        """Until a child takes requests. Raises what its load raised."""
        await self._settled.wait()
        if not self.status.takes_requests:
            raise self._fault or EngineUnavailable(self._why_not())

    async def stop(self, status: Status, reason: str) -> None:
        """End the child; open streams raise EngineUnavailable."""
        supervisor, self._supervisor = self._supervisor, None
        self._set(status, reason)
        self._settled.set()
        if supervisor is not None and not supervisor.done():
            supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await supervisor
        self._ready_s = None
        self._lose(reason)

    def cut(self, reason: str) -> None:
        """As `stop`, with nothing waited for: the child is killed, and open streams raise
        EngineClosed now. `stop` may follow."""
        process, supervisor = self._process, self._supervisor
        self._set(Status.CLOSED, reason)
        self._settled.set()
        if supervisor is not None:
            supervisor.cancel()
        if process is not None:
            process.kill()
        self._lose(reason)

    def submit(self, request: Request) -> RemoteStream:
        """Raises InvalidRequest, CapacityExceeded or EngineUnavailable. Nothing waits."""
        facts, process = self.facts, self._process
        if not self.status.takes_requests or facts is None or process is None:
            closed = self.status is Status.CLOSED
            raise (EngineClosed if closed else EngineUnavailable)(self._why_not())
        check_request(request, facts.limits)
        check_fits(request, facts.limits, facts.num_blocks, facts.block_size)
        if request.request_id in self._streams:
            raise InvalidRequest("request_id", f"{request.request_id!r} is in progress")
        if len(self._streams) >= self._max_requests:
            raise CapacityExceeded(f"{self._max_requests} requests are in progress already")
        self.faults.send(process, Submit(request))
        stream = RemoteStream(request, self._abort)
        if not self._streams:
            self._busy_since_s = self._clock()
        self._streams[request.request_id] = stream
        return stream

    def abort(self, request_id: str) -> bool:
        """End a request; its stream gets its CANCELLED finish. False: it is not open."""
        self._abort(request_id, None)
        return request_id in self._streams

    def _abort(self, request_id: str, index: int | None) -> None:
        if self._process is not None and request_id in self._streams:
            self.faults.send(self._process, Abort(request_id, index))

    async def disturb(self, fault: Disturb) -> None:
        """Put a fault into the engine, or into the way to it. Raises InvalidRequest,
        EngineUnavailable."""
        if self._process is None or not self.status.takes_requests:
            raise EngineUnavailable(self._why_not())
        await self.faults.begin(self._process, fault)

    def tell(self, message: Look | Pace) -> None:
        """For whoever watches: ask for a `picture`; or set the pace of the engine that is there."""
        if self._process is not None and self._ready_s is not None:
            if isinstance(message, Pace):
                self.pace, self._busy_since_s = message, self._clock()
            self._process.send(message)

    async def _supervise_safely(self) -> None:
        """Should the watch itself fail, nobody is left waiting."""
        try:
            await self._supervise()
        except Exception as error:
            self._fault = EngineUnavailable(f"the watch over the engine failed: {shown(error)}")
            self._ready_s, self._watch_failed = None, True
            self._set(Status.FAILED, str(self._fault))
            self._settled.set()
            self._lose(str(self._fault))

    async def _supervise(self) -> None:
        """One child after another, for ever; or until the first load has failed."""
        num_failures = 0
        while True:
            reason = await self._run_child()
            was_ready, self._ready_s = self._ready_s, None
            dead = was_ready is None and self._fault is None
            self._num_dead_starts = self._num_dead_starts + 1 if dead else 0
            if not self._was_ready:
                self._fault = self._fault or EngineUnavailable(reason)
                self._set(Status.FAILED, str(self._fault))
                self._settled.set()
                return
            self._set(Status.RESTARTING, reason)
            self._lose(reason)
            stable = was_ready is not None and self._clock() - was_ready >= self._watch.stable_s
            num_failures = 0 if stable else num_failures + 1
            self.num_restarts += 1
            await asyncio.sleep(self._watch.delay_s(num_failures, was_ready is not None))

    async def _run_child(self) -> str:
        """Start a child and watch it to its end; gives the reason of that."""
        self._fault, self._silent_s, self.progress = None, 0.0, None
        self.memory_short = False
        self.picture, self.pace = None, Pace()
        try:
            process = await EngineProcess.start(self._take)
        except OSError as error:
            return f"the engine's process cannot be started: {error}"
        self._process = process
        try:
            process.send(self._load)
            hung = await self._attend(process)
        except asyncio.CancelledError:
            if self._ready_s is None:  # it loads, and does not look at the connection meanwhile
                process.kill()
            raise
        finally:
            self._process = None
            ending = await process.end()
        if hung is not None:
            return hung
        return ending if self._fault is None else str(self._fault)

    async def _attend(self, process: EngineProcess) -> str | None:
        """Ping it until it ends; None. Or until it has to be ended: why."""
        number = 0
        asked_s, used_s = self._clock(), process.cpu_s()
        while not await process.wait_ended(self._watch.beat_s):
            # A pause of this process itself is no silence of the other: at most two beats count.
            now_s = self._clock()
            passed_s, asked_s = min(now_s - asked_s, 2 * self._watch.beat_s), now_s
            if self._ready_s is None:
                continue
            if self._silent_s == 0.0:
                used_s = process.cpu_s()
            self._silent_s += passed_s
            now_used_s = process.cpu_s()
            meanwhile_s = None if now_used_s is None or used_s is None else now_used_s - used_s
            if is_hung(self._silent_s, meanwhile_s, self._longest, self._watch.hang_s):
                process.kill()
                return f"the engine hung: its step loop was silent for {self._silent_s:.1f} s"
            if self.stalls_s > self._watch.stall_s:
                process.kill()
                return f"the engine made no step for {self.stalled_s:.0f} s, with requests open"
            if self._silent_s > max(self._watch.late_s, self._longest.ms * 1e-3):
                self._set(Status.DEGRADED, "the step loop is late")
            number += 1
            process.send(Ping(number))
        return None

    def _take(self, message: FromChild) -> None:
        match message:
            case Stepped(events=events, facts=facts):
                self._deliver(events, facts)
            case Pong(peak_rss_bytes=peak_rss_bytes, has_reserve=has_reserve):
                self.peak_rss_bytes, self.memory_short = peak_rss_bytes, not has_reserve
                self._moved()
            case Loading(done_bytes=done_bytes, total_bytes=total_bytes):
                self.progress = done_bytes / total_bytes if total_bytes else None
            case Logged():
                give_out(message)
            case Seen(picture=picture):
                self.picture = picture
            case Ready(engine=facts):
                self._become_ready(facts)
            case Failed(fault=fault):
                self._fault = from_fault(fault)
            case Disturbed(fault=fault):
                self.faults.answered(fault)
            case Declined(request_id=request_id, fault=fault):
                self._decline(request_id, fault)

    def _decline(self, request_id: str, fault: Fault) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.fail(from_fault(fault))
            self._on_end(stream.request)

    def _become_ready(self, facts: EngineFacts) -> None:
        if self.status not in (Status.LOADING, Status.RESTARTING):
            return  # `stop` was faster
        self.facts = facts
        self._longest = StepCost(facts.longest_step_ms, facts.longest_step_cpu_ms)
        self.peak_rss_bytes = facts.memory.peak_rss_bytes
        self.progress = None
        self._ready_s, self._was_ready = self._clock(), True
        self._set(Status.READY, "")
        self._settled.set()

    def _deliver(self, events: tuple[TokenEvent, ...], facts: StepFacts | None) -> None:
        if facts is not None:
            self._moved()
            self.last_step_s = self._clock()
            step_ms = facts.plan_ms + facts.run_ms + facts.commit_ms
            if step_ms > self._longest.ms:
                self._longest = self._longest._replace(ms=step_ms)
            self._on_step(facts)
        self._on_events(events)
        streams = self._streams
        for event in events:
            stream = streams[event.request_id]
            if stream.put(event):
                del streams[event.request_id]
                self._on_end(stream.request)

    def _moved(self) -> None:
        """The step loop has shown that it lives."""
        self._silent_s = 0.0
        if self.status is Status.DEGRADED:
            self._set(Status.READY, "")

    def _lose(self, reason: str) -> None:
        """All open requests are gone with their child."""
        if self.status is Status.RESTARTING:
            self._settled.clear()
        streams, self._streams = self._streams, {}
        kind = _PLANNED.get(self.status, EngineLost)
        how = "ended" if self.status in _PLANNED else "lost"
        for stream in streams.values():
            stream.fail(kind(f"the engine was {how} with this request: {reason}"))
            self._on_end(stream.request)

    def _why_not(self) -> str:
        if self.status.takes_requests:
            return "no engine now: it has just ended"
        return f"no engine now ({self.status.value}): {self.reason}"

    def _set(self, status: Status, reason: str) -> None:
        if (status, reason) != (self.status, self.reason):
            if status is not self.status:
                self.since_s = self._clock()
            self.status, self.reason = status, reason
