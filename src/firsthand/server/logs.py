"""What the server says while it runs: one JSON object per line on standard error.

Owns: the fields and their order, the line of a request, which level is logged.
May not know: prompts, answers, keys: nothing that could hold one is ever given to it.
Read next: `guard/call.py`, the facts of a request.

On a terminal the same lines are told in words. Lines of libraries join the stream. With a folder
they are kept there too, in a file of this host and process, so that many servers may share it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Protocol, TextIO

from firsthand.config import read_environment
from firsthand.errors import InvalidRequest
from firsthand.generation.child_log import frames_of
from firsthand.observe.probes import is_probe
from firsthand.observe.records import Record
from firsthand.server.guard.access import route_path
from firsthand.server.guard.call import CURRENT, Call

LOGGER = "firsthand"
REQUESTS = logging.getLogger("firsthand.server.request")
EVENTS = logging.getLogger("firsthand.server.event")
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_NOT_WORTH_A_LINE = ("socket.send() raised exception.", "Invalid HTTP request received.")
_SENDERS = ("opentelemetry", "requests", "urllib3")
COLOURS = {logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 31}  # of a terminal
RARELY_S = 60.0
MAX_TOLD = 100  # different messages
FILE_BYTES, NUM_FILES = 64 << 20, 4  # of one process in a folder; the oldest goes
_FACTS = "facts"  # attribute of a record: what goes into the line beside the message


def configure_logging(
    level: str, form: str, stream: TextIO | None = None, folder: Path | None = None
) -> logging.Handler:
    """One handler for everything, in place of what was there, and one for a folder. `form`: auto,
    json or text. Raises InvalidRequest: the folder cannot be written."""
    out = sys.stderr if stream is None else stream
    handler = Quiet(out)
    as_text = form == "text" or (form == "auto" and out.isatty())
    colours = out.isatty() and read_environment().colour
    handler.setFormatter(TextFormatter(colours) if as_text else JsonFormatter())
    handlers = [handler, *([] if folder is None else [_in_folder(folder)])]
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        if isinstance(old, QuietFile):
            old.close()
    for one in handlers:
        root.addHandler(one)
        one.addFilter(_is_worth_a_line)
        one.addFilter(_Rarely())
    set_level(level)
    return handler


def _in_folder(folder: Path) -> logging.Handler:
    path = folder / f"{socket.gethostname()}-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handler = QuietFile(path, "a", FILE_BYTES, NUM_FILES - 1, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest("log_folder", f"{path}: {error.strerror}") from error
    handler.setFormatter(JsonFormatter())
    return handler


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Not what asyncio says at each write to a client that has gone, by the hundred before the
    transport tells of it; our line of the request says it once. Nor uvicorn's line for each request
    that is no HTTP: anybody could fill the log with them, and a metric counts them."""
    return record.getMessage() not in _NOT_WORTH_A_LINE


class _Rarely(logging.Filter):
    """What the library of traces says of a receiver that is away, it says with each attempt: once a
    minute is enough."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("opentelemetry"):
            return True
        told_s = self._last_s.get(record.msg)
        if told_s is not None and record.created - told_s < RARELY_S:
            return False
        if len(self._last_s) >= MAX_TOLD:
            self._last_s.clear()
        self._last_s[record.msg] = record.created
        return True


def set_level(level: str) -> None:
    """Libraries are told of from warning on: their messages may quote what a client sent."""
    logging.getLogger().setLevel(max(LEVELS["warning"], LEVELS[level]))
    logging.getLogger(LOGGER).setLevel(LEVELS[level])


def tell(event: str, message: str, level: int = logging.INFO, **facts: Any) -> None:
    """Something that happened to the server. `event` is a stable name in snake_case."""
    EVENTS.log(level, message, extra={_FACTS: {"event": event, **facts}})


def tell_request(
    call: Call, scope: Mapping[str, Any], status: int, now: float, record: Record | None = None
) -> None:
    """The one line of a request, when it has ended: numbers and names only. Of one that failed
    it has where the time went."""
    facts: dict[str, Any] = {
        "event": "request",
        "request_id": call.request_id,
        "model": call.model,
        "manifest": call.manifest,
        "contract": call.contract,
        "method": scope["method"],
        "endpoint": _endpoint(scope),
        "status": status,
        "outcome": call.outcome,
        "finish_reason": call.finish_reason,
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": call.cached_tokens,
        "output_tokens": call.output_tokens,
        "draft_tokens": call.draft_tokens,
        "accepted_tokens": call.accepted_tokens,
        "queue_ms": _ms(call.queue_ms),
        "ttft_ms": _ms(call.ttft_ms),
        "e2e_ms": _ms((now - call.arrived_s) * 1e3),
        "itl_ms_p50": _ms(call.itl_ms_p50),
        "batch_max": call.batch_max,
        "preemptions": call.preemptions,
        "replicas": None if record is None else record.replicas or None,
        "priority": call.priority,
        "said": call.said or None,
        "ignored": call.ignored or None,
        "cascade": None if call.cascade is None else call.cascade.to_dict(),
        "key_id": call.caller.key_id or None,
        "replayed": call.replayed or None,
        "error": _error(call),
        "stages": None if record is None or status < 500 else _stages(record, now),
    }
    shown = {name: value for name, value in facts.items() if value is not None}
    REQUESTS.log(_level(scope, status), "request", extra={_FACTS: shown})


def _error(call: Call) -> dict[str, Any] | None:
    """Of a fault, its class too; never its text, which may quote a request."""
    told = {"code": call.error_code, "type": (call.cause or "").partition(":")[0] or None}
    return {name: value for name, value in told.items() if value is not None} or None


def _stages(record: Record, now: float) -> dict[str, float]:
    return {one.name: round(one.ms, 3) for one in record.stages(now)}


def _level(scope: Mapping[str, Any], status: int) -> int:
    """Probes come every second or so, and say nothing that a change of state does not."""
    if status >= 500 and status != 503:
        return logging.ERROR
    return logging.DEBUG if is_probe(route_path(scope)) else logging.INFO


class Quiet(logging.StreamHandler[TextIO]):
    """A line that cannot be written is dropped: the server serves on when its log is full."""

    on_lost: Callable[[], None] | None = None

    def handleError(self, record: logging.LogRecord) -> None:
        if self.on_lost is not None:
            self.on_lost()


class QuietFile(RotatingFileHandler):
    """The same, of a file: the disk, or the way to it, may be gone."""

    on_lost: Callable[[], None] | None = None
    handleError = Quiet.handleError


def tell_lost(on_lost: Callable[[], None] | None) -> None:
    """Call it for each line that cannot be written, from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, Quiet | QuietFile | SentLines):
            handler.on_lost = on_lost


class Sender(Protocol):
    """A `LogSender`; its module is loaded where lines are sent."""

    def send(self, line: Mapping[str, Any], created_s: float) -> None: ...
    def close(self) -> None: ...


class SentLines(logging.Handler):
    """Every line goes to a receiver too, until it is closed. What the senders say themselves would
    make a line of each line."""

    on_lost: Callable[[], None] | None = None

    def __init__(self, sender: Sender) -> None:
        super().__init__()
        self._sender = sender
        self.addFilter(_is_worth_a_line)
        self.addFilter(lambda record: not record.name.startswith(_SENDERS))
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sender.send(_line(record), record.created)
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if self.on_lost is not None:
            self.on_lost()

    def close(self) -> None:
        logging.getLogger().removeHandler(self)
        self._sender.close()
        super().close()


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_line(record), ensure_ascii=False, default=str)


def _line(record: logging.LogRecord) -> dict[str, Any]:
    line: dict[str, Any] = {
        "timestamp": _time(record.created),
        "level": record.levelname.lower(),
        "module": record.name,
        "message": record.getMessage(),
        **_of_the_call(),
    }
    line |= _facts(record)
    if record.exc_info and record.exc_info[0] is not None:
        line["error"] = _fault(record.exc_info[1])
    return line


class TextFormatter(logging.Formatter):
    def __init__(self, colours: bool = False) -> None:
        super().__init__()
        self._colours = COLOURS if colours else {}

    def format(self, record: logging.LogRecord) -> str:
        known = _of_the_call() | _facts(record)
        facts = " ".join(f"{name}={value}" for name, value in known.items() if value is not None)
        level = f"{record.levelname:7}"
        if record.levelno in self._colours:
            level = f"\x1b[{self._colours[record.levelno]}m{level}\x1b[0m"
        text = f"{_time(record.created)} {level} {record.getMessage()} {facts}"
        if record.exc_info and record.exc_info[0] is not None:
            text += f" {_fault(record.exc_info[1])}"
        return text.rstrip()


def _of_the_call() -> dict[str, str | None]:
    """Of the request in whose task the line was written; null where there is none."""
    call = CURRENT.get()
    if call is None:
        return {"request_id": None}
    if call.trace is None:
        return {"request_id": call.request_id}
    return {
        "request_id": call.request_id,
        "trace_id": call.trace.trace_id,
        "span_id": call.trace.span_id,
    }


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    found = record.__dict__.get(_FACTS)
    return found if isinstance(found, dict) else {}


def _fault(fault: BaseException | None) -> dict[str, Any]:
    """Where it happened. Not its text, which may quote a request."""
    return {"type": type(fault).__name__, "stack": list(frames_of(fault))}


def _endpoint(scope: Mapping[str, Any]) -> str:
    """The route's own form where one was found, so that a path never fills the log."""
    route = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) else str(scope.get("path", ""))[:100]


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _time(created_s: float) -> str:
    at = datetime.fromtimestamp(created_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
