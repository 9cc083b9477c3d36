"""The parent's side of the template renderer: start, ask, and kill at the limit of time.

Owns: the child process, its clock, its replacement.
May not know: what a template or a message is.
Read next: `template_worker.py`, the child.

The child starts at the first render. After a kill its successor starts at once, so that the next
render finds it ready. Frames are JSON with a length before them; nothing is ever pickled.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from firsthand.errors import EngineError, InvalidRequest, TemplateError

RENDER_SECONDS = 1.0
START_SECONDS = 30.0
MAX_REQUEST_BYTES = 16 << 20
OLDEST_JINJA = (3, 1, 6)  # older ones let a template out of the sandbox (CVE-2025-27516)


class TemplateProcess:
    """One child process, shared by any number of templates and threads; one render at a time."""

    def __init__(self, *, render_seconds: float = RENDER_SECONDS) -> None:
        self._render_seconds = render_seconds
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def render(self, template: str, variables: Mapping[str, Any], now_s: float | None) -> str:
        """The rendered text. `now_s`: the time that the template sees (None: the clock's).

        Raises TemplateError when the template fails, refuses, or passes a limit;
        InvalidRequest when `variables` is no JSON.
        """
        request = _encode({"template": template, "variables": variables, "now": now_s})
        with self._lock:
            if self._child is None or not self._child.is_alive():
                self._child = _Child()
            child = self._child
            child.await_ready()
            reply = child.ask(request, self._render_seconds)
            if reply is None:
                self._child = _Child()
        if reply is None:
            raise TemplateError(
                "messages",
                f"the chat template was stopped: over {self._render_seconds:g} s or out of memory",
            )
        if "text" in reply:
            return str(reply["text"])
        what = "the chat template refused" if reply["refused"] else "the chat template failed"
        raise TemplateError("messages", f"{what}: {reply['error']}")

    def close(self) -> None:
        """End the child. A later render starts another."""
        with self._lock:
            if self._child is not None:
                self._child.end()
            self._child = None


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
        self._ready = False
        self.end = weakref.finalize(self, _end_process, self._process)

    def is_alive(self) -> bool:
        return self.end.alive and self._process.poll() is None

    def await_ready(self) -> None:
        """Wait for its first frame, once. Raises EngineError when it does not come."""
        if self._ready:
            return
        hello = self.ask(b"", START_SECONDS)
        if hello is None:
            raise EngineError("the renderer of chat templates does not start")
        try:
            check_jinja_version(str(hello["jinja"]))
        except EngineError:
            self.end()
            raise
        self._ready = True

    def ask(self, request: bytes, limit_seconds: float) -> dict[str, Any] | None:
        """Its reply, or None when it died or was killed at the limit; then it is gone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(limit_seconds, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            reply = _read_frame(self._process.stdout)
        except OSError:
            reply = None
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
    return struct.pack(">I", len(data)) + data


def _read_frame(stream: IO[bytes]) -> dict[str, Any] | None:
    header = stream.read(4)
    if len(header) < 4:
        return None
    (length,) = struct.unpack(">I", header)
    data = stream.read(length)
    if len(data) < length:
        return None
    reply: dict[str, Any] = json.loads(data)
    return reply
