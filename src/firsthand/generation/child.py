"""The engine's process: loads a model, steps, and speaks frames with the service that started it.

Owns: the step loop of a process, its one connection, and that it never outlives its parent.
May not know: text, prompts' words, who reads what it sends.
Read next: `frames.py` (the messages), `assembly.py` (the engine); above, `remote.py`.

One thread, and nothing else holds the interpreter: between two steps it takes what has arrived,
and it sends what a step brought in one frame, without ever waiting for the reader. What the socket
does not take is kept, and is bounded: n · (max_tokens + 1) events per open request, and the facts
of as many steps. An idle process sleeps until something arrives. A ping is answered by this loop,
so an answer says that it moves. Signals that a terminal or a service manager sends to all
processes are ignored: the parent drains, and ends this one by closing the connection.

Memory that runs short costs the reserve first, which is told with the next answer to a ping, so
that less is let in; then the requests at fault; and if nothing can be computed any more, this
process, so that another begins with what is free then.

Begun by `child_start.py`, with the descriptor of its socket and its parent's pid.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import math
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence

from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.errors import EngineError, FirsthandError, InvalidRequest
from firsthand.generation.assembly import StepCost, assemble, warm_up
from firsthand.generation.child_log import Lines
from firsthand.generation.disturbance import Disturbance
from firsthand.generation.frames import (
    Abort,
    Declined,
    Disturb,
    Disturbed,
    EngineFacts,
    Failed,
    FromChild,
    Loading,
    LoadModel,
    Look,
    Pace,
    Ping,
    Pong,
    Ready,
    Seen,
    Stepped,
    Submit,
    ToChild,
    child_reader,
    encode,
    to_fault,
)
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.generation.pacing import Pacing
from firsthand.generation.report import Memory
from firsthand.memory.reserve import Reserve
from firsthand.processes import peak_resident_bytes

PROGRESS_S = 0.1  # between two reports of a load
LAST_WORDS_S = 1.0
STARVED_STEPS = 2  # in a row, in which nothing could be computed for want of memory
READ_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


class ParentLink:
    """The child's end of the socket pair: reads what is there, sends what fits, keeps the rest."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = child_reader()
        self._unsent: deque[memoryview] = deque()
        self._poll = select.poll()

    def receive(self, *, wait: bool, limit_s: float | None = None) -> list[ToChild] | None:
        """What has arrived; `wait`: until something has, or for `limit_s`. None: the parent is
        gone."""
        until_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            self._flush()
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                if not wait or not self._sleep(until_s):
                    return []
                continue
            except OSError:
                return None
            if not data:
                return None
            messages = self._reader.feed(data)
            if messages or not wait:
                return messages

    def send(self, message: FromChild) -> None:
        self._unsent.append(memoryview(encode(message)))
        self._flush()

    def drain(self, limit_s: float) -> None:
        """Wait until all is sent, for the last words of a process."""
        until_s = time.monotonic() + limit_s
        while self._unsent and time.monotonic() < until_s:
            self._poll.register(self._socket, select.POLLOUT)
            self._poll.poll(50)
            self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                num_sent = self._socket.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:  # the parent is gone: the next `receive` finds out
                self._unsent.clear()
                return
            if num_sent < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][num_sent:]
            else:
                self._unsent.popleft()

    def _sleep(self, until_s: float | None) -> bool:
        """Until the socket is ready, or that time has come: False."""
        writes = select.POLLOUT if self._unsent else 0
        self._poll.register(self._socket, select.POLLIN | writes)
        if until_s is None:
            self._poll.poll()
            return True
        left_ms = math.ceil((until_s - time.monotonic()) * 1e3)
        return left_ms > 0 and bool(self._poll.poll(left_ms))


class Loop:
    """Messages in, steps, messages out, until the parent is gone."""

    def __init__(self, connection: ParentLink, reserve: Reserve, lines: Lines) -> None:
        self._connection = connection
        self._lines = lines
        self._reserve = reserve
        self._facts: StepFacts | None = None
        self._num_starved = 0
        self._pacing = Pacing()
        self.disturbance: Disturbance | None = None

    def on_step(self, facts: StepFacts) -> None:
        self._facts = facts

    def run(self, engine: Engine) -> None:
        receive, send = self._connection.receive, self._connection.send
        while True:
            wait_s = self._wait_s(engine)
            messages = receive(wait=wait_s != 0.0, limit_s=wait_s)
            if messages is None:
                return
            for message in messages:
                self._take(engine, message)
            for line in self._lines.take():
                send(line)
            if engine.has_work and self._wait_s(engine) == 0.0:
                events = engine.step()
                self._pacing.stepped(time.monotonic())
                facts, self._facts = self._facts, None
                if events or facts is not None:  # else nothing was ready to run
                    send(Stepped(tuple(events), facts))
                if facts is not None and facts.error is not None:
                    self._check_memory(facts)
                else:
                    self._num_starved = 0

    def _wait_s(self, engine: Engine) -> float | None:
        """Before the next step; None: until something arrives."""
        if self.disturbance is not None:
            self.disturbance.tick()
            if self.disturbance.stalls:
                return None
        return self._pacing.wait_s(time.monotonic()) if engine.has_work else engine.idle_s

    def _disturb(self, wanted: Disturb) -> Disturbed:
        if self.disturbance is None:
            return Disturbed(to_fault(InvalidRequest("chaos", "is not allowed here")))
        try:
            self.disturbance.begin(wanted.name, wanted.seconds, wanted.amount)
        except FirsthandError as error:
            return Disturbed(to_fault(error))
        return Disturbed()

    def _check_memory(self, facts: StepFacts) -> None:
        """Raises MemoryError when it has become useless to go on."""
        if facts.out_of_memory and facts.num_failed >= facts.num_sequences:
            self._num_starved += 1
        if self._num_starved >= STARVED_STEPS:
            raise MemoryError("no memory for any step: the model is loaded again")

    def _take(self, engine: Engine, message: ToChild) -> None:
        send = self._connection.send
        match message:
            case Submit(request=request):
                try:
                    engine.add(request)
                except FirsthandError as error:
                    send(Declined(request.request_id, to_fault(error)))
            case Abort(request_id=request_id, index=index):
                events = engine.abort(request_id, index)
                if events:
                    send(Stepped(tuple(events)))
            case Ping(number=number):
                self._reserve.look()
                send(Pong(number, peak_resident_bytes(), self._reserve.is_held))
            case Look():
                send(Seen(engine.picture()))
            case Pace():
                self._pacing.take(message)
            case Disturb():
                send(self._disturb(message))
            case LoadModel():
                raise EngineError("a second model was sent")


def load(
    connection: ParentLink, loop: Loop, reserve: Reserve, clock: Callable[[], float]
) -> Engine | None:
    """The engine that the first message asks for, warm. None: the parent is gone."""
    messages = connection.receive(wait=True)
    if messages is None:
        return None
    first = messages[0]
    if not isinstance(first, LoadModel) or len(messages) > 1:
        raise EngineError("the first message is to be a model, and the only one")
    told_s = clock()

    def progress(done_bytes: int, total_bytes: int) -> None:
        nonlocal told_s
        if clock() - told_s >= PROGRESS_S:
            told_s = clock()
            connection.send(Loading(done_bytes, total_bytes))

    loaded = load_model(first.model, first.options, progress, late_text=True)
    loaded.claim()
    if first.chaos:
        loop.disturbance = disturbance = Disturbance(loaded, clock)
        assembly = assemble(loaded, clock, loop.on_step, reserve.give_up, disturbance.around)
        disturbance.attach(assembly.scheduler.memory)
    else:
        assembly = assemble(loaded, clock, loop.on_step, reserve.give_up)
    longest = warm_up(assembly, loaded)
    reserve.take()
    connection.send(Ready(_facts(loaded, longest)))
    return assembly.engine


def _facts(loaded: LoadedModel, longest: StepCost) -> EngineFacts:
    held, store = loaded.executor.memory(), loaded.store
    block_size = loaded.budget.block_size  # of what is counted; a contiguous store has another
    return EngineFacts(
        limits=loaded.limits,
        num_blocks=loaded.budget.num_blocks,
        block_size=block_size,
        block_bytes=store.resident_bytes(block_size),
        load=loaded.times,
        memory=Memory(
            weights_bytes=held.weights_bytes,
            scratch_bytes=held.scratch_bytes,
            kv_reserved_bytes=loaded.budget.kv_bytes,
            kv_used_bytes=0,
            peak_rss_bytes=peak_resident_bytes(),
        ),
        longest_step_ms=longest.ms,
        longest_step_cpu_ms=longest.cpu_ms,
        adapters=dict(loaded.adapters),
    )


def die_with(parent_pid: int) -> None:
    """End with the parent, whatever this process is doing then. (Where the system cannot do that,
    the loop still ends when it finds the connection closed.)"""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent_pid:  # it had ended before
            raise SystemExit(0)


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 when the parent closed the connection, 1 after a fault that it was told
    of."""
    fd, parent_pid = map(int, arguments)
    die_with(parent_pid)
    faulthandler.enable()  # a fault in native code says where, on the standard error stream
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.set_inheritable(fd, False)
    with socket.socket(fileno=fd) as sock:
        connection = ParentLink(sock)
        reserve = Reserve(time.perf_counter)
        lines = Lines()
        logging.getLogger().addHandler(lines)
        loop = Loop(connection, reserve, lines)
        log = logging.getLogger(__name__)
        # So is a warning, which Python would print in a form of its own.
        warnings.showwarning = lambda message, *_: log.warning("%s", message)
        try:
            engine = load(connection, loop, reserve, time.perf_counter)
            if engine is not None:
                loop.run(engine)
        except Exception as error:
            if not isinstance(error, FirsthandError):
                log.exception("the engine's process ends by a fault")
            for line in lines.take():
                connection.send(line)
            connection.send(Failed(to_fault(error)))
            connection.drain(LAST_WORDS_S)
            return 1
    return 0
