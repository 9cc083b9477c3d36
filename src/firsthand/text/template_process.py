"""The parent's side of the template renderer: start, ask, and kill at the limit of time.

Owns: the child processes, their clock, their replacement, who waits for whom.
May not know: what a template or a message is.
Read next: `template_worker.py`, the child.

There are two children, started when they are first needed. After a kill the successor starts at
once, so that the next render finds it ready. A template that was stopped once is a suspect, and
suspects run one at a time: however many wait, the other child stays free for the rest. Whoever
has waited `WAIT_S` for a child is refused (CapacityExceeded).

Frames are JSON with a number and a length before them; nothing is ever pickled. A child whose
reply was not read (an interrupt came between) or has another number is ended: its pipe may hold
the prompt of another user.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from firsthand.errors import CapacityExceeded, EngineError, InvalidRequest, TemplateError

NUM_CHILDREN = 2
RENDER_S = 1.0
WAIT_S = 5.0
START_S = 30.0
MAX_REQUEST_BYTES = 16 << 20
MAX_REPLY_BYTES = 8 << 20  # one MiB of text, each byte of it escaped
MAX_SUSPECTS = 64
OLDEST_JINJA = (3, 1, 6)  # older ones let a template out of the sandbox (CVE-2025-27516)


@dataclass(slots=True)
class _Slot:
    """The place of one child. `template`: what it renders now; None: it is free."""

    child: _Child | None = None
    template: str | None = None


class TemplateProcess:
    """Two children, shared by any number of templates and threads."""

    def __init__(self, *, render_s: float = RENDER_S, wait_s: float = WAIT_S) -> None:
        self._render_s = render_s
        self._wait_s = wait_s
        self._changed = threading.Condition()  # guards what follows, but for a taken slot's child
        self._slots = [_Slot() for _ in range(NUM_CHILDREN)]
        self._suspects: set[str] = set()
        self._closed = False

    def render(self, template: str, variables: Mapping[str, Any], now_s: float | None) -> str:
        """The rendered text. `now_s`: the time that the template sees (None: the clock's).

        Raises TemplateError when the template fails, refuses, or passes a limit;
        InvalidRequest when `variables` is no JSON; CapacityExceeded when no child becomes free;
        EngineError after `close`.
        """
        request = _encode({"template": template, "variables": variables, "now": now_s})
        with self._slot(template) as slot:
            if slot.child is None or not slot.child.is_alive():
                self._start(slot)
            child = slot.child
            assert child is not None
            child.await_ready()
            reply = child.ask(request, self._render_s)
            if reply is None:
                self._suspect(template)
                self._start(slot)
        if reply is None:
            raise TemplateError(
                "messages",
                f"the chat template was stopped: over {self._render_s:g} s or out of memory",
            )
        if "text" in reply:
            return str(reply["text"])
        what = "the chat template refused" if reply["refused"] else "the chat template failed"
        raise TemplateError("messages", f"{what}: {reply['error']}")

    def close(self) -> None:
        """End the children, also under a render that runs. Nothing is rendered afterwards."""
        with self._changed:
            self._closed = True
            for slot in self._slots:
                if slot.child is not None:
                    slot.child.end()
            self._changed.notify_all()

    @contextmanager
    def _slot(self, template: str) -> Iterator[_Slot]:
        """A slot of one's own, given back at the end whatever happens."""
        slot: _Slot | None = None
        try:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._choose(template) is not None, self._wait_s
                )
                self._check_open()
                slot = self._choose(template)
                if slot is None:
                    raise CapacityExceeded(
                        f"chat templates: no renderer became free in {self._wait_s:g} s"
                    )
                slot.template = template
            yield slot
        finally:
            if slot is not None:
                with self._changed:
                    slot.template = None
                    self._changed.notify_all()

    def _choose(self, template: str) -> _Slot | None:
        """A free slot for it, if it may run now; rather one that has a child."""
        running = {slot.template for slot in self._slots}
        if template in self._suspects and not running.isdisjoint(self._suspects):
            return None
        free = [slot for slot in self._slots if slot.template is None]
        return min(free, key=lambda slot: slot.child is None, default=None)

    def _suspect(self, template: str) -> None:
        with self._changed:
            if len(self._suspects) >= MAX_SUSPECTS:
                self._suspects.clear()
            self._suspects.add(template)

    def _start(self, slot: _Slot) -> None:
        with self._changed:
            self._check_open()
            slot.child = _Child()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the renderer of chat templates is closed")


def check_jinja_version(version: str) -> None:
    """Raises EngineError when a Jinja of that version would not keep templates in."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if numbers < OLDEST_JINJA:
        oldest = ".".join(map(str, OLDEST_JINJA))
        raise EngineError(f"chat templates need jinja2 {oldest} or newer; {version} is installed")


class _Child:
    """One run of the worker, from its start to its end."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("template_worker.py")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={} if os.name == "posix" else None,  # nothing there to be read
            )
        except OSError as error:
            raise EngineError(f"the renderer of chat templates does not start: {error}") from None
        self._num_asked = 0
        self.end = weakref.finalize(self, _end_process, self._process)

    def is_alive(self) -> bool:
        return self.end.alive and self._process.poll() is None

    def await_ready(self) -> None:
        """Wait for its first frame, once. Raises EngineError when it does not come."""
        if self._num_asked:
            return
        hello = self.ask(b"", START_S)
        if hello is None:
            raise EngineError("the renderer of chat templates does not start")
        try:
            check_jinja_version(str(hello["jinja"]))
        except EngineError:
            self.end()
            raise

    def ask(self, request: bytes, limit_s: float) -> dict[str, Any] | None:
        """Its reply, or None when it died or was killed at the limit; then it is gone.

        Its first frame comes unasked. Whatever leaves here as an exception ends it, too.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(limit_s, self._process.kill)
        timer.daemon = True
        reply = None
        try:
            number, self._num_asked = self._num_asked, self._num_asked + 1
            timer.start()
            if number:
                self._process.stdin.write(struct.pack(">II", number, len(request)) + request)
                self._process.stdin.flush()
            reply = _read_frame(self._process.stdout, number)
        except (OSError, ValueError):  # ValueError: closed meanwhile, or no JSON
            pass
        finally:
            timer.cancel()
            if reply is None:
                self.end()
        return reply


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        try:
            if stream is not None:
                stream.close()
        except OSError:  # unsent bytes of a request that the child did not live to read
            pass


def _encode(request: Mapping[str, Any]) -> bytes:
    try:
        data = json.dumps(request, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("messages", f"cannot be written as JSON: {error}") from None
    if len(data) > MAX_REQUEST_BYTES:
        raise InvalidRequest("messages", f"are over {MAX_REQUEST_BYTES} bytes")
    return data


def _read_frame(stream: IO[bytes], number: int) -> dict[str, Any] | None:
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
    reply: dict[str, Any] = json.loads(data)
    return reply
