"""The engine's thread: requests go in through a bounded inbox, events come out per request.

Owns: the thread, the inbox, and the only lock.
May not know: text, what a step does, who reads the events.
Read next: `engine.py`; above, `generation/llm.py` reads the streams.

Only frozen values cross. The lock guards the inbox and the table of streams, and is never held
during a step. A stream holds at most max_tokens + 1 events, because a request gives no more, so
the engine never waits for a reader. An idle worker sleeps on the condition until something comes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from firsthand.engine.engine import Engine
from firsthand.errors import CapacityExceeded, EngineError, FirsthandError, InvalidRequest
from firsthand.request import Finish, FinishReason, Request, TokenEvent

T = TypeVar("T")


class EventStream:
    """The events of one request, in order; ends after the event with a finish.

    Reading waits for the next event and can be interrupted. `close` aborts what is left, and may
    be called at any time, from any thread, more than once.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self._request_id = request_id
        self._abort = abort
        self._events: SimpleQueue[TokenEvent] = SimpleQueue()
        self._finished = False

    @property
    def request_id(self) -> str:
        return self._request_id

    def put(self, event: TokenEvent) -> None:
        """For the worker."""
        self._events.put(event)

    def __iter__(self) -> Iterator[TokenEvent]:
        return self

    def __next__(self) -> TokenEvent:
        if self._finished:
            raise StopIteration
        event = self._events.get()
        self._finished = event.finish is not None
        return event

    def close(self) -> None:
        if not self._finished:
            self._finished = True
            self._abort(self._request_id)


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    action: Callable[[], Any]
    future: Future[Any]

    def make(self) -> None:
        try:
            self.future.set_result(self.action())
        except Exception as fault:  # the caller's, who gets it; the engine goes on
            self.future.set_exception(fault)


class Worker:
    """Runs an engine on its own thread, from `start` until `close`.

    `max_requests` bounds what is waiting and running together; one more is refused with
    CapacityExceeded. If the thread ends by a fault, every open stream gets an ERROR finish and
    every later `submit` an EngineError: nobody is left waiting.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float], max_requests: int) -> None:
        self._engine = engine
        self._clock = clock
        self._max_requests = max_requests
        self._wakes = threading.Condition()
        # A request to add, the id of one to abort, or a call to make between two steps.
        self._inbox: list[Request | str | _Call] = []
        self._streams: dict[str, EventStream] = {}
        self._closed_because: str | None = None
        self._process_id = os.getpid()
        # A daemon: an owner who forgot `close` must not hang the interpreter at its exit.
        self._thread = threading.Thread(target=self._main, name="firsthand-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def num_requests(self) -> int:
        """Requests submitted whose end has not been told yet; for the server's health."""
        return len(self._streams)

    def submit(self, request: Request) -> EventStream:
        """Hand a request over. Raises InvalidRequest, CapacityExceeded or EngineError."""
        self._engine.check(request)
        stream = EventStream(request.request_id, self.abort)
        with self._wakes:
            self._check_runs()
            if request.request_id in self._streams:
                raise InvalidRequest("request_id", f"{request.request_id!r} is in progress")
            if len(self._streams) >= self._max_requests:
                raise CapacityExceeded(f"{self._max_requests} requests are in progress already")
            self._streams[request.request_id] = stream
            self._inbox.append(request)
            self._wakes.notify()
        return stream

    def abort(self, request_id: str) -> None:
        """Ask for the end of a request; its stream gets a CANCELLED finish. No-op if ended."""
        with self._wakes:
            if request_id in self._streams:
                self._inbox.append(request_id)
                self._wakes.notify()

    def call(self, action: Callable[[], T]) -> T:
        """Run `action` on the engine's thread, between two steps, and give what it gives.

        For the rare work that must not meet a step: a trace. Raises what `action` raises, or
        EngineError if the engine stops before it came to it.
        """
        call = _Call(action, Future())
        with self._wakes:
            self._check_runs()
            self._inbox.append(call)
            self._wakes.notify()
        result: T = call.future.result()
        return result

    def _check_runs(self) -> None:
        """A thread does not follow its process through a fork; waiting for it would never end."""
        if os.getpid() != self._process_id:
            raise EngineError("the engine does not run: this process was forked from its own")
        if self._closed_because is not None:
            raise EngineError(f"the engine does not run: {self._closed_because}")

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Stop after the step in progress and wait for the thread. Open streams are cancelled."""
        with self._wakes:
            if self._closed_because is None:
                self._closed_because = "it was closed"
            self._wakes.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        # Usually there are none left; a thread that hangs in a step must not keep readers waiting.
        self._end_all(Finish(FinishReason.CANCELLED, "the engine was closed"))

    def _main(self) -> None:
        finish = Finish(FinishReason.CANCELLED, "the engine was closed")
        try:
            while self._take_inbox():
                if self._engine.has_work:
                    self._deliver(self._engine.step())
        except BaseException as fault:
            # Not raised again: it is told to each waiting request and to every later one.
            finish = Finish(FinishReason.ERROR, f"the engine stopped: {fault!r}")
            with self._wakes:
                self._closed_because = str(finish.cause)
        self._end_all(finish)

    def _take_inbox(self) -> bool:
        """Sleep until there is something to do, then take the messages. False: stop."""
        with self._wakes:
            while not (self._inbox or self._engine.has_work or self._closed_because):
                self._wakes.wait()
            if self._closed_because:
                return False
            messages, self._inbox = self._inbox, []
        for message in messages:
            if isinstance(message, str):
                event = self._engine.abort(message)
                self._deliver([] if event is None else [event])
            elif isinstance(message, Request):
                self._add(message)
            else:
                message.make()
        return True

    def _add(self, request: Request) -> None:
        """A request was checked when it was submitted; should it be refused now, it ends alone."""
        try:
            self._engine.add(request)
        except FirsthandError as fault:
            finish = Finish(FinishReason.ERROR, str(fault))
            self._deliver([TokenEvent(request.request_id, None, self._clock(), finish=finish)])

    def _deliver(self, events: Sequence[TokenEvent]) -> None:
        """Put each event into its stream; the stream leaves the table with its last one."""
        with self._wakes:
            for event in events:
                stream = self._streams.get(event.request_id)
                if stream is None:
                    continue  # ended by `close` while a step hung
                if event.finish is not None:
                    del self._streams[event.request_id]
                stream.put(event)

    def _end_all(self, finish: Finish) -> None:
        with self._wakes:
            streams, self._streams = list(self._streams.values()), {}
            calls = [message for message in self._inbox if isinstance(message, _Call)]
            self._inbox = []
        for call in calls:
            call.future.set_exception(EngineError(str(finish.cause)))
        for stream in streams:
            stream.put(TokenEvent(stream.request_id, None, self._clock(), finish=finish))
