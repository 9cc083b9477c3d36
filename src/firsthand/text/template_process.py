"""The parent's side of the template renderer: start, ask, and kill at the limit of time.

Owns: the child processes, their clock, their replacement, who waits for whom.
May not know: what a template or a message is.
Read next: `template_worker.py`, the child.

There are two lanes, each a thread with one child. One is reserved for templates that have
rendered well before, the other takes the unknown ones, and last of all the suspects: those that
were stopped once. So no stranger's template holds up a good one. After a kill the successor starts
at once, so that the next render finds it ready. Whoever has waited `WAIT_S` for a lane is refused
(CapacityExceeded).

Only a lane's thread touches its child. Callers put a job into the lane's queue and wait on a
queue of their own: signals interrupt the main thread alone, and each of these calls is one step
to them, so an interrupt leaves no lock held, no child unowned, and no reply for the next caller.

Frames are JSON with a number and a length before them; nothing is ever pickled. A child whose
reply was not read or has another number is ended: its pipe may hold the prompt of another user.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from firsthand.errors import CapacityExceeded, EngineError, InvalidRequest, TemplateError
from firsthand.processes import processor_s
from firsthand.values import dataclass

RENDER_S = 1.0
MORE_S = 9.0  # for one that has not used that much of the processor
LEAST_WAIT_S = 0.01  # in which the system counts
WAIT_S = 5.0
START_S = 30.0
CLOSE_S = 2.0
MAX_REQUEST_BYTES = 16 << 20
MAX_REPLY_BYTES = 8 << 20  # one MiB of text, each byte of it escaped
MAX_REMEMBERED = 64
OLDEST_JINJA = (3, 1, 6)  # older ones let a template out of the sandbox (CVE-2025-27516)

Reply = dict[str, Any]


@dataclass(slots=True)
class _Job:
    """One render. `answers` gets None when it begins; then the reply (None: it was stopped), or
    the fault. `abandoned`: its caller waits no longer."""

    template: str
    request: bytes
    answers: SimpleQueue[Reply | BaseException | None] = field(default_factory=SimpleQueue)
    abandoned: bool = False


@dataclass(slots=True)
class _Pool:
    """What the two lanes share. None in a queue: start your child, or end when `closed`."""

    render_s: float
    closed: bool = False
    proven: set[str] = field(default_factory=set)
    suspects: set[str] = field(default_factory=set)
    for_proven: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)
    for_others: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)

    def queue_for(self, template: str) -> SimpleQueue[_Job | None]:
        proven = template in self.proven and template not in self.suspects
        return self.for_proven if proven else self.for_others

    def check_open(self) -> None:
        if self.closed:
            raise EngineError("the renderer of chat templates is closed")


class TemplateProcess:
    """Two children, shared by any number of templates and threads."""

    def __init__(self, *, render_s: float = RENDER_S, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._pid = os.getpid()
        self._pool = _Pool(render_s)
        queues = (self._pool.for_proven, self._pool.for_others)
        self._lanes = tuple(_Lane(self._pool, queue) for queue in queues)
        # The threads know the lanes only: a pool that is dropped still ends them.
        weakref.finalize(self, _tell_closed, self._pool, self._lanes)
        for lane in self._lanes:
            threading.Thread(target=lane.run, name="chat-templates", daemon=True).start()

    def render(
        self, template: str, variables: Mapping[str, Any] | None, now_s: float | None = None
    ) -> str:
        """The rendered text; without `variables` it is only compiled. `now_s`: the time that the
        template sees (None: the clock's).

        Raises TemplateError when the template fails, refuses, or passes a limit;
        InvalidRequest when `variables` is no JSON; CapacityExceeded when no child becomes free;
        EngineError after `close`, and in a fork of the process that made this.
        """
        request = _encode({"template": template, "variables": variables, "now": now_s})
        if self._pid != os.getpid():
            raise EngineError("the renderer of chat templates belongs to the parent process")
        self._pool.check_open()
        job = _Job(template, request)
        try:
            self._pool.queue_for(template).put(job)
            reply = self._wait(job)
        finally:
            job.abandoned = True
        if reply is None:
            limit_s = self._pool.render_s
            raise TemplateError(
                "messages", f"the chat template was stopped: over {limit_s:g} s or out of memory"
            )
        if "text" in reply:
            return str(reply["text"])
        what = "the chat template refused" if reply["refused"] else "the chat template failed"
        raise TemplateError("messages", f"{what}: {reply['error']}")

    def reap(self) -> None:
        """Let the system forget a child that was ended from outside; the next job starts another.
        To be called now and then by whoever lives long."""
        for lane in self._lanes if self._pid == os.getpid() else ():
            child = lane.child
            if child is not None:
                child.is_alive()

    def close(self) -> None:
        """End the children, also under a render that runs. Nothing is rendered afterwards."""
        if self._pid != os.getpid():
            return  # the children are the parent's
        _tell_closed(self._pool, self._lanes)
        until_s = time.monotonic() + CLOSE_S
        while not all(lane.ended for lane in self._lanes) and time.monotonic() < until_s:
            time.sleep(0.002)

    def _wait(self, job: _Job) -> Reply | None:
        self._pool.check_open()  # once more: a job put after the lanes' end is never answered
        try:
            answer = job.answers.get(timeout=self._wait_s)
        except Empty:
            self._pool.check_open()
            raise CapacityExceeded(
                f"chat templates: no renderer became free in {self._wait_s:g} s"
            ) from None
        if answer is None:
            answer = job.answers.get()  # the lane's clock bounds it
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _tell_closed(pool: _Pool, lanes: Iterable[_Lane]) -> None:
    pool.closed = True
    for lane in lanes:
        lane.jobs.put(None)
        if lane.child is not None:
            lane.child.stop()


class _Lane:
    """A thread with one child, and the jobs that wait for it."""

    def __init__(self, pool: _Pool, jobs: SimpleQueue[_Job | None]) -> None:
        self.jobs = jobs
        self.child: _Child | None = None
        self.ended = False
        self._pool = pool
        self._waiting: list[_Job] = []

    def run(self) -> None:
        try:
            while not self._pool.closed:
                job = self._next()
                if job is not None:
                    self._serve(job)
        finally:
            self._end_child()
            self._take(block=False)
            for job in self._waiting:
                job.answers.put(EngineError("the renderer of chat templates is closed"))
            self.ended = True

    def _next(self) -> _Job | None:
        """The job to do now: the first, but a suspect only when nobody else waits."""
        self._take(block=not self._waiting)
        self._waiting = [job for job in self._waiting if not job.abandoned]
        if not self._waiting or self._pool.closed:
            return None
        job = min(self._waiting, key=lambda job: job.template in self._pool.suspects)
        self._waiting.remove(job)
        queue = self._pool.queue_for(job.template)
        if queue is not self.jobs:  # its template became known, as good or bad, meanwhile
            queue.put(job)
            return None
        return job

    def _take(self, *, block: bool) -> None:
        """Whatever is in the queue; `block`: wait until something is."""
        try:
            while True:
                job = self.jobs.get(block=block)
                block = False
                if job is not None:
                    self._waiting.append(job)
                elif not self._pool.closed:
                    self._start_early()
        except Empty:
            pass

    def _serve(self, job: _Job) -> None:
        job.answers.put(None)
        answer: Reply | BaseException | None = None
        try:
            answer = self._render(job)
        except BaseException as error:  # this thread lives on; the fault is its caller's to see
            answer = error
            self._end_child()
        finally:
            job.answers.put(answer)
        if self.child is None:
            self._start_early()

    def _render(self, job: _Job) -> Reply | None:
        pool = self._pool
        reply = self._ready_child().ask(job.request, pool.render_s)
        if reply is None:
            self._end_child()
            pool.check_open()
            _remember(pool.suspects, job.template)
        elif "text" in reply and job.template not in pool.proven:
            _remember(pool.proven, job.template)
            pool.for_proven.put(None)  # the next one goes there, and should find a child
        return reply

    def _ready_child(self) -> _Child:
        if self.child is None or not self.child.is_alive():
            self._start()
        assert self.child is not None
        self.child.await_ready()
        return self.child

    def _start(self) -> None:
        self._end_child()
        self.child = _Child()
        self._pool.check_open()  # `close` may have looked for a child before there was one

    def _start_early(self) -> None:
        if self.child is None and not self._pool.closed:
            with suppress(EngineError):  # the next job tries again, and says so
                self._start()

    def _end_child(self) -> None:
        child, self.child = self.child, None
        if child is not None:
            child.end()


def _remember(templates: set[str], template: str) -> None:
    if len(templates) >= MAX_REMEMBERED:
        templates.clear()
    templates.add(template)


def check_jinja_version(version: str) -> None:
    """Raises EngineError when a Jinja of that version would not keep templates in."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if numbers < OLDEST_JINJA:
        oldest = ".".join(map(str, OLDEST_JINJA))
        raise EngineError(f"chat templates need jinja2 {oldest} or newer; {version} is installed")


class _Child:
    """One run of the worker, from its start to its end. Only `stop` is for other threads."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("template_worker.py")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={} if os.name == "posix" else None,  # nothing there to be read
                start_new_session=True,  # the terminal's interrupt is the parent's
            )
        except OSError as error:
            raise EngineError(f"the renderer of chat templates does not start: {error}") from None
        self._num_asked = 0
        self._done: SimpleQueue[bool] = SimpleQueue()

    def stop(self) -> None:
        """End the question that is being asked, or else the next one, as at its limit."""
        self._done.put(False)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def await_ready(self) -> None:
        """Wait for its first frame, once. Raises EngineError when it does not come."""
        if self._num_asked:
            return
        hello = self.ask(b"", START_S)
        if hello is None:
            raise EngineError("the renderer of chat templates does not start")
        check_jinja_version(str(hello["jinja"]))

    def ask(self, request: bytes, limit_s: float) -> Reply | None:
        """Its reply, or None when it died, was stopped, or spoke out of turn: then end it.

        Its first frame comes unasked.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        clock = threading.Thread(target=self._kill_at, args=(limit_s,), daemon=True)
        clock.start()
        try:
            number, self._num_asked = self._num_asked, self._num_asked + 1
            if number:
                self._process.stdin.write(struct.pack(">II", number, len(request)) + request)
                self._process.stdin.flush()
            return _read_frame(self._process.stdout, number)
        except (OSError, ValueError):  # ValueError: no JSON
            return None
        finally:
            self._done.put(True)
            clock.join()  # before the next question, which has the same queue

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # unsent bytes that the child did not live to read
                    stream.close()

    def _kill_at(self, limit_s: float) -> None:
        """By the time of the processor: one that waits for a busy machine is not at fault. But by
        the clock `MORE_S` later at last."""
        began_s, used_s = time.monotonic(), processor_s(self._process.pid)
        wait_s = limit_s
        while wait_s > 0:
            try:
                if self._done.get(timeout=max(wait_s, LEAST_WAIT_S)):
                    return
                break
            except Empty:
                now_used_s = processor_s(self._process.pid)
                if used_s is None or now_used_s is None:
                    break
                left_s = limit_s + MORE_S - (time.monotonic() - began_s)
                wait_s = min(limit_s - (now_used_s - used_s), left_s)
        self._process.kill()


def _encode(request: Mapping[str, Any]) -> bytes:
    try:
        data = json.dumps(request, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("messages", f"cannot be written as JSON: {error}") from None
    if len(data) > MAX_REQUEST_BYTES:
        raise InvalidRequest("messages", f"are over {MAX_REQUEST_BYTES} bytes")
    return data


def _read_frame(stream: IO[bytes], number: int) -> Reply | None:
    """The reply of that number; None when the stream ends or has something else."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    found, length = struct.unpack(">II", header)
    if found != number or length > MAX_REPLY_BYTES:
        return None
    data = stream.read(length)
    if len(data) < length:
        return None
    reply: Reply = json.loads(data)
    return reply
