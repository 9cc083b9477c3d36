"""Every line of the log: whose request it belongs to, in one form whoever writes it."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firsthand.errors import InvalidRequest
from firsthand.generation.child_log import MAX_LINES, Lines, give_out
from firsthand.generation.frames import Logged
from firsthand.observe.trace_context import TraceContext
from firsthand.server.guard.call import CURRENT, Call, Caller
from firsthand.server.logs import TextFormatter, configure_logging, tell, tell_lost
from tests.server.guarded import AUTH, CHAT, guarded

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
Found = Callable[[], list[dict[str, object]]]


@pytest.fixture
def lines() -> Iterator[Found]:
    root, stream = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    handler = configure_logging("info", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.removeHandler(handler)
    for old in before:
        root.addHandler(old)
    root.setLevel(level)
    logging.getLogger("firsthand").setLevel(logging.NOTSET)


def test_s_66_s_95_a_line_names_the_request_in_whose_task_it_was_written(lines: Found) -> None:
    """Lines of libraries too; null where there is no request."""
    tell("x", "before")
    token = CURRENT.set(Call("r1", Caller(), 0.0, trace=TraceContext(TRACE, SPAN)))
    logging.getLogger("somebody.else").warning("inside")
    CURRENT.reset(token)
    before, inside = lines()
    assert list(before)[:5] == ["timestamp", "level", "module", "message", "request_id"]
    assert before["request_id"] is None
    assert (inside["request_id"], inside["trace_id"], inside["span_id"]) == ("r1", TRACE, SPAN)
    assert inside["module"] == "somebody.else"


def test_a_callers_trace_is_in_the_line_of_its_request(lines: Found) -> None:
    with guarded() as server:
        trace = f"traceparent: 00-{TRACE}-{SPAN}-01\r\nX-Request-Id: mine\r\n"
        _, answer = server.post("/v1/chat/completions", CHAT, AUTH + trace)
        assert b"x-request-id: mine" in answer and b"traceparent" not in answer
        server.service.fault = RuntimeError("zebra-9931")
        assert server.post("/v1/chat/completions", CHAT)[0] == 500
    told = [one for one in lines() if one.get("event") == "request"]
    assert (told[0]["request_id"], told[0]["trace_id"]) == ("mine", TRACE)
    fault, failed = [one for one in lines() if one["level"] == "error"]
    assert fault["request_id"] == failed["request_id"] and failed["outcome"] == "failed"
    error = fault["error"]
    assert isinstance(error, dict) and error["type"] == "RuntimeError" and error["stack"]
    assert failed["error"] == {"type": "RuntimeError"} and failed["stages"]
    assert "zebra-9931" not in json.dumps(lines())


def test_an_engines_lines_come_out_in_the_same_stream(lines: Found) -> None:
    child = Lines()
    record = logging.getLogger("firsthand.engine").makeRecord
    for number in range(MAX_LINES + 5):
        child.emit(record("firsthand.engine", 30, "", 0, "line %d", (number,), None))
    try:
        raise ValueError("zebra-9931")
    except ValueError as fault:
        info = (type(fault), fault, fault.__traceback__)
        child.emit(record("firsthand.engine", 40, "", 0, "a step failed", (), info))
    taken = child.take()
    assert len(taken) == MAX_LINES and child.take() == [] and taken[0].message == "line 6"
    give_out(taken[-1])
    give_out(Logged(10, "firsthand.engine", "too low"))
    (line,) = lines()
    assert (line["level"], line["message"]) == ("error", "a step failed")
    error = line["error"]
    assert isinstance(error, dict) and error["type"] == "ValueError"
    assert "test_logs.py" in error["stack"][0] and "zebra-9931" not in json.dumps(line)


def test_a_receiver_that_is_away_is_told_once_a_minute(lines: Found) -> None:
    for number in range(50):
        logging.getLogger("opentelemetry.exporter").warning("again, attempt %d", number)
    assert len(lines()) == 1


def test_a_terminal_is_told_in_words() -> None:
    record = logging.LogRecord("firsthand.x", 30, "", 0, "it is late", (), None)
    vars(record)["facts"] = {"event": "late"}
    text = TextFormatter().format(record)
    assert text.endswith("WARNING it is late event=late") and "request_id" not in text


@pytest.mark.parametrize(("no_colour", "found"), [("", True), ("1", False)])
def test_on_a_terminal_a_level_has_its_colour(
    monkeypatch: pytest.MonkeyPatch, no_colour: str, found: bool
) -> None:
    """NO_COLOR; and never in a file."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", no_colour)
    before, out = logging.getLogger().handlers[:], Terminal()
    handler = configure_logging("info", "auto", out)
    try:
        tell("x", "all is well")
        tell("y", "not so well", logging.WARNING)
    finally:
        logging.getLogger().removeHandler(handler)
        for old in before:
            logging.getLogger().addHandler(old)
    well, not_well = out.getvalue().splitlines()
    assert "\x1b" not in well and ("\x1b[33mWARNING" in not_well) == found


def test_s_103_a_folder_has_a_file_of_each_host_and_process(
    lines: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a folder that cannot be written any more costs those lines alone."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    try:
        configure_logging("info", "json", io.StringIO(), tmp_path / "logs")
        tell("x", "one")
        (path,) = (tmp_path / "logs").iterdir()
        assert path.name == f"{socket.gethostname()}-{os.getpid()}.log"
        assert json.loads(path.read_text())["event"] == "x"
        lost: list[int] = []
        tell_lost(lambda: lost.append(1))
        for handler in root.handlers:
            if isinstance(handler, logging.FileHandler):
                monkeypatch.setattr(handler.stream, "write", full)
        tell("x", "two")
        assert lost == [1]
        monkeypatch.undo()
        with pytest.raises(InvalidRequest, match="log_folder"):
            configure_logging("info", "json", io.StringIO(), path / "under a file")
    finally:
        for handler in root.handlers[:]:
            root.removeHandler(handler)
            handler.close()
        for handler in before:
            root.addHandler(handler)


def full(text: str) -> int:
    raise OSError(28, "No space left on device")
