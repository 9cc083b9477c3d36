"""The child process that renders chat templates: a sandbox in a process that may be killed.

Owns: the Jinja environment, its limits of memory and size, the frames on the two pipes.
May not know: anything of Firsthand. It is run as a script in isolated mode, not imported.
Read next: `template_process.py`, its parent.

A frame is a number and a length, four bytes each (big-endian), and that many bytes of JSON, both
ways. The child first says which Jinja it has, as frame 0; then each request is answered by one
frame of the same number:
    {"template": …, "variables": {…}, "now": seconds or null} → {"text": …}
                                                  or {"error": …, "refused": true or false}
The parent keeps the time. Should the parent be gone, an alarm ends a render that does not.
"""

from __future__ import annotations

import codecs
import json
import os
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MAX_OUTPUT_BYTES = 1 << 20
MAX_MEMORY_BYTES = 512 << 20
MAX_MESSAGE_CHARS = 500
MAX_COMPILED = 8
ORPHAN_S = 5.0


class Refusal(Exception):
    """What the template itself raised, by `raise_exception`."""


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, but reaching for what is unsafe is an error, never an empty text."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise jinja2.exceptions.SecurityError(f"access to {attribute!r} is not safe")


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it only scopes them."""

    tags = {"generation"}  # noqa: RUF012 (the base class has it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def main() -> None:
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is the parent's
    environment = build_environment()
    load_all(environment)
    limit_process()
    write_frame(replies, 0, {"jinja": jinja2.__version__})
    compiled: dict[str, jinja2.Template] = {}
    while (frame := read_frame(requests)) is not None:
        number, request = frame
        set_alarm(ORPHAN_S)
        reply = answer(environment, compiled, request)
        set_alarm(0.0)
        write_frame(replies, number, reply)


def answer(
    environment: jinja2.Environment, compiled: dict[str, jinja2.Template], request: dict[str, Any]
) -> dict[str, Any]:
    """Render one request, or say in one line why not: no traceback, no path."""
    try:
        return {"text": render(environment, compiled, request)}
    except Refusal as error:
        return {"error": str(error)[:MAX_MESSAGE_CHARS], "refused": True}
    except jinja2.TemplateError as error:
        message = f"{type(error).__name__}: {error.message or ''}"
        if os.sep in message:  # it may quote a path
            message = type(error).__name__
    except MemoryError:
        message = "it asked for too much memory"
    except RecursionError:
        message = "it calls itself too deeply"
    except Exception as error:
        message = type(error).__name__
    return {"error": message[:MAX_MESSAGE_CHARS], "refused": False}


def render(
    environment: jinja2.Environment, compiled: dict[str, jinja2.Template], request: dict[str, Any]
) -> str:
    source = request["template"]
    template = compiled.get(source)
    if template is None:
        if len(compiled) >= MAX_COMPILED:
            compiled.clear()
        template = compiled[source] = environment.from_string(source)
    if request["variables"] is None:
        return ""
    now = request.get("now")

    def strftime_now(form: str) -> str:
        return time.strftime(form, time.localtime(now))

    pieces, num_bytes = [], 0
    for piece in template.generate(**request["variables"], strftime_now=strftime_now):
        num_bytes += len(piece.encode("utf-8", "surrogatepass"))
        if num_bytes > MAX_OUTPUT_BYTES:
            raise jinja2.TemplateRuntimeError(f"its text is over {MAX_OUTPUT_BYTES} bytes")
        pieces.append(piece)
    return "".join(pieces)


def build_environment() -> jinja2.Environment:
    """The environment that chat templates expect, with no loader and no unsafe reach."""
    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, GenerationTag],
    )
    environment.globals.pop("lipsum", None)
    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = to_json
    return environment


def raise_exception(message: object = "") -> None:
    raise Refusal(str(message))


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: no HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def load_all(environment: jinja2.Environment) -> None:
    """Load what a render may need later: afterwards no file can be opened, not even a module's."""
    codecs.lookup("unicode_escape")
    time.localtime()
    for template in ("{{ x.y }}", "{% if", "{{ 'a\\n' | wordwrap | upper | pprint | tojson }}"):
        answer(environment, {}, {"template": template, "variables": {}})


def limit_process() -> None:
    """Bound the memory; no file can be opened, written or left as a core."""
    try:
        import resource
    except ImportError:  # no such limits on this system; the parent's clock remains
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def set_alarm(seconds: float) -> None:
    """End the process after that long; the default action of the signal does it. 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def read_frame(stream: BinaryIO) -> tuple[int, dict[str, Any]] | None:
    """The next request and its number; None when the parent has closed the pipe."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    number, length = struct.unpack(">II", header)
    return number, json.loads(stream.read(length))


def write_frame(stream: BinaryIO, number: int, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode("ascii")
    stream.write(struct.pack(">II", number, len(data)) + data)
    stream.flush()


if __name__ == "__main__":
    main()
