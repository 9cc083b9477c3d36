"""The engine's thread: requests go in through a bounded inbox, events come out per request.

Owns: the thread, the inbox, and the table of open streams (which only the thread changes).
May not know: text, what a step does, who reads the events.
Read next: `engine.py`; above, `generation/llm.py` submits and `generation/stream.py` reads.

Only frozen values cross, through queues whose put and get are single operations of the
interpreter. A caller never holds a lock of ours: a Ctrl-C may arrive between any two of its
instructions, and a lock left held would stop the engine for good. A stream holds at most
n · (max_tokens + 1) events, because a request gives no more, so the engine never waits for a
reader. An idle worker sleeps in the inbox's `get`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from firsthand.checks import shown
from firsthand.engine.engine import Engine
from firsthand.errors import CapacityExceeded, EngineError, FirsthandError, InvalidRequest
from firsthand.request import Finish, FinishReason, Request, TokenEvent
from firsthand.values import dataclass

T = TypeVar("T")


class EventStream:
    """The events of one request, in order; ends after the finish of the last of its n sequences.

    Reading waits for the next event and can be interrupted. `close` aborts what is left, and may
    be called at any time, from any thread, more than once; `close_index` one sequence only.
    """

    def __init__(
        self,
        request_id: str,
        indexes: Collection[int],
        abort: Callable[[str, int | None], None],
    ) -> None:
        self._request_id = request_id
        self._abort = abort
        self._events: SimpleQueue[TokenEvent] = SimpleQueue()
        self._num_unread = len(indexes)  # finishes that the reader has not seen
        self._open = set(indexes)  # sequences whose finish was not put

    @property
    def request_id(self) -> str:
        return self._request_id

    def put(self, event: TokenEvent) -> bool:
        """For the worker. True: that was the last event."""
        self._events.put(event)
        if event.finish is None:
            return False
        self._open.discard(event.index)
        return not self._open

    def end(self, finish: Finish, at_s: float) -> None:
        """For the worker: end every sequence that is open."""
        for index in sorted(self._open):
            self.put(TokenEvent(self._request_id, None, at_s, finish=finish, index=index))

    def __iter__(self) -> Iterator[TokenEvent]:
        return self

    def __next__(self) -> TokenEvent:
        if self._num_unread <= 0:
            raise StopIteration
        event = self._events.get()
        if event.finish is not None:
            self._num_unread -= 1
        return event

    def close(self) -> None:
        if self._num_unread > 0:
            self._num_unread = 0
            self._abort(self._request_id, None)

    def close_index(self, index: int) -> None:
        """Abort one sequence; its finish still comes, unless it has come."""
        if self._num_unread > 0:
            self._abort(self._request_id, index)


@dataclass(frozen=True, slots=True, eq=False)
class _Submit:
    request: Request
    stream: EventStream


@dataclass(frozen=True, slots=True)
class _Abort:
    """`index` None: the whole request."""

    request_id: str
    index: int | None


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """`reply` gets one value: the result, or the exception that was raised."""

    action: Callable[[], Any]
    reply: SimpleQueue[tuple[Any, BaseException | None]]


@dataclass(frozen=True, slots=True)
class _Wake:
    """Nothing to do but look whether the worker was closed."""


class Worker:
    """Runs an engine on its own thread, from `start` until `close`.

    `max_requests` bounds what is waiting and running together; one more is refused with
    CapacityExceeded. (Callers that submit at the same moment may pass it by their number.) If the
    thread ends by a fault, every open stream gets an ERROR finish and every later `submit` an
    EngineError: nobody is left waiting.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float], max_requests: int) -> None:
        self._engine = engine
        self._clock = clock
        self._max_requests = max_requests
        self._inbox: SimpleQueue[_Submit | _Abort | _Call | _Wake] = SimpleQueue()
        self._streams: dict[str, EventStream] = {}
        self._closed_because: str | None = None
        self._ended = False  # set before the thread looks into the inbox for the last time
        self._process_id = os.getpid()
        # A daemon: an owner who forgot `close` must not hang the interpreter at its exit.
        self._thread = threading.Thread(target=self._main, name="firsthand-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def num_requests(self) -> int:
        """Requests taken by the thread whose end has not been told yet."""
        return len(self._streams)

    def submit(self, request: Request) -> EventStream:
        """Hand a request over. Raises InvalidRequest, CapacityExceeded or EngineError."""
        self._engine.check(request)
        self._check_runs()
        if request.request_id in self._streams:
            raise InvalidRequest("request_id", f"{request.request_id!r} is in progress")
        if len(self._streams) + self._inbox.qsize() >= self._max_requests:
            raise CapacityExceeded(f"{self._max_requests} requests are in progress already")
        stream = EventStream(request.request_id, request.beginnings, self.abort)
        self._inbox.put(_Submit(request, stream))
        if self._ended:  # the thread's last look may have come before the put
            self._check_runs()
        return stream

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Ask for the end of a request, or of one of its sequences: before the next step, whatever
        it is doing. The stream gets a CANCELLED finish for each. No-op for what has ended."""
        self._inbox.put(_Abort(request_id, index))

    def call(self, action: Callable[[], T]) -> T:
        """Run `action` on the engine's thread, between two steps, and give what it gives.

        For the rare work that must not meet a step: a trace. Raises what `action` raises, or
        EngineError if the engine stops before it came to it.
        """
        self._check_runs()
        reply: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._inbox.put(_Call(action, reply))
        if self._ended:
            self._check_runs()
        result, fault = reply.get()
        if fault is not None:
            raise fault
        value: T = result
        return value

    def _check_runs(self) -> None:
        """A thread does not follow its process through a fork; waiting for it would never end."""
        if os.getpid() != self._process_id:
            raise EngineError("the engine does not run: this process was forked from its own")
        if self._closed_because is not None:
            raise EngineError(f"the engine does not run: {self._closed_because}")

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Stop after the step in progress and wait for the thread. Open streams are cancelled.

        May be called again, also after an interrupt cut it short.
        """
        if self._closed_because is None:
            self._closed_because = "it was closed"
        self._inbox.put(_Wake())
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        # Usually there are none left; a thread that hangs in a step must not keep readers waiting.
        self._end(list(self._streams.values()), Finish(FinishReason.CANCELLED, _CLOSED))

    def _main(self) -> None:
        finish = Finish(FinishReason.CANCELLED, _CLOSED)
        try:
            while self._take_inbox():
                if self._engine.has_work:
                    self._deliver(self._engine.step())
        except BaseException as fault:
            # Not raised again: it is told to each waiting request and to every later one.
            logging.getLogger(__name__).exception("the engine's thread ends by a fault")
            finish = Finish(FinishReason.ERROR, f"the engine stopped: {shown(fault)}")
            self._closed_because = str(finish.cause)
        self._ended = True
        streams = list(self._streams.values())
        self._streams.clear()
        for message in self._messages():
            if isinstance(message, _Submit):
                streams.append(message.stream)
            elif isinstance(message, _Call):
                message.reply.put((None, EngineError(str(finish.cause))))
        self._end(streams, finish)

    def _take_inbox(self) -> bool:
        """Sleep until there is something to do, then do what the messages ask. False: stop."""
        if not self._engine.has_work and self._closed_because is None:
            with suppress(Empty):  # a batch is due then
                self._take(self._inbox.get(timeout=self._engine.idle_s))
        for message in self._messages():
            self._take(message)
        return self._closed_because is None

    def _messages(self) -> Iterator[_Submit | _Abort | _Call | _Wake]:
        """What is in the inbox now."""
        while True:
            try:
                yield self._inbox.get_nowait()
            except Empty:
                return

    def _take(self, message: _Submit | _Abort | _Call | _Wake) -> None:
        match message:
            case _Submit(request, stream):
                self._add(request, stream)
            case _Abort(request_id, index):
                self._deliver(self._engine.abort(request_id, index))
            case _Call(action, reply):
                try:
                    reply.put((action(), None))
                except Exception as fault:  # the caller's, who gets it; the engine goes on
                    reply.put((None, fault))
            case _Wake():
                pass

    def _add(self, request: Request, stream: EventStream) -> None:
        """A request was checked when it was submitted; should it be refused now, it ends alone."""
        try:
            self._engine.add(request)
        except FirsthandError as fault:
            self._end([stream], Finish(FinishReason.ERROR, str(fault)))
        else:
            self._streams[request.request_id] = stream

    def _deliver(self, events: Sequence[TokenEvent]) -> None:
        """Put each event into its stream; the stream leaves the table with its last one."""
        streams = self._streams
        for event in events:
            if streams[event.request_id].put(event):
                del streams[event.request_id]

    def _end(self, streams: Sequence[EventStream], finish: Finish) -> None:
        for stream in streams:
            stream.end(finish, self._clock())


_CLOSED = "the engine was closed"
