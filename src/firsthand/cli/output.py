"""What the commands say: data to standard output, everything else to standard error.

Owns: the standard streams, also closed, full or broken ones; the one line of `--json`, the mapping
from errors to exit codes, tables, progress.
May not know: what any command computes.
Read next: `main.py`.

With `--json` standard output gets exactly one line, also when the command fails: then it is
{"error": {"type": …, "message": …}}, and the exit code says what kind of failure it was.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper

import typer

from firsthand.columns import columns, cut, padded
from firsthand.errors import (
    AnswerCancelled,
    BadHash,
    BadSignature,
    CapacityExceeded,
    DownloadFailed,
    FirsthandError,
    InvalidRequest,
    ModelNotFound,
    ReleaseRefused,
    SourceRefused,
)

FAILED = 1
USAGE = 2
CHECK_FAILED = 3
NO_MODEL = 4
NO_MEMORY = 5
INTERRUPTED = 130
RESULTS = {True: "ok", False: "FAILED", None: "left out"}  # of a check


MIN_COLUMN = 12  # a column is not made narrower than this


def open_streams() -> None:
    """Standard streams that can be used, in UTF-8.

    Whatever the locale says: text is data, and must not raise half way. In place of a stream that
    the caller closed comes the null device, so that no file we open gets its number: an input at
    its end, messages that go nowhere, an output that refuses to be written.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(sys.stdin, TextIOWrapper):
        # Bytes that are no UTF-8 become lone surrogates, which the tokenizer refuses by name.
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")


def finish(code: int) -> int:
    """Write out what is buffered; the exit code of the process.

    What cannot be written is dropped here, where it can be told: Python's shutdown would try
    again, and complain in words of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if stream is sys.stdout and code == 0 and not isinstance(error, BrokenPipeError):
                say(f"error: standard output: {error.strerror}")
                code = FAILED
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


def print_json(value: object) -> None:
    """The one line. NaN and infinity have no JSON form and are a fault of ours."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def say(message: str, end: str = "\n") -> None:
    """A line for the person, not for a program. One that cannot be written is dropped.

    On a terminal it takes the place of an unfinished line of `progress`.
    """
    with suppress(OSError):
        clear = "\x1b[K" if sys.stderr.isatty() else ""
        print(clear + message, end=end, file=sys.stderr, flush=True)


def exit_code(error: BaseException) -> int:
    """The exit code of a failure, as README.md lists them."""
    if isinstance(error, KeyboardInterrupt | AnswerCancelled):
        return INTERRUPTED
    if isinstance(error, InvalidRequest):
        return USAGE
    if isinstance(error, ModelNotFound | DownloadFailed | BadHash | BadSignature):
        return NO_MODEL
    if isinstance(error, CapacityExceeded | MemoryError) or _is_full(error):
        return NO_MEMORY
    return CHECK_FAILED if isinstance(error, SourceRefused | ReleaseRefused) else FAILED


def _is_full(error: BaseException) -> bool:
    """The disk of a file that has a name; an output that is piped away has none."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full and getattr(error, "filename", None) is not None


@contextmanager
def reported(as_json: bool = False) -> Iterator[None]:
    """Turn what a command raises into a message and an exit code.

    An error of `errors.py`, or of the operating system, is for the user and has no traceback;
    any other is a fault of ours and keeps it. A reader of our output that has had enough, as
    `head` has, is no error.
    """
    try:
        yield
    except typer.Exit:
        raise
    except BrokenPipeError:
        raise typer.Exit from None
    except (Exception, KeyboardInterrupt) as error:
        if not isinstance(error, FirsthandError | OSError | KeyboardInterrupt | MemoryError):
            say(traceback.format_exc())
        message = error_message(error)
        if as_json:
            with suppress(OSError):  # it may be standard output that failed
                print_json({"error": {"type": type(error).__name__, "message": message}})
        if not isinstance(error, KeyboardInterrupt):  # `run_command` says that, for typer too
            say(f"error: {message}")
        raise typer.Exit(exit_code(error)) from None


def error_message(error: BaseException) -> str:
    """What to say of it, never empty."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, OSError) and error.filename is None and error.strerror:
        return f"input or output failed: {error.strerror}"
    unsaid = "out of memory" if isinstance(error, MemoryError) else type(error).__name__
    return str(error) or unsaid


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, whole: bool = False
) -> None:
    """On a terminal the widest column gives way to its width, unless the cells are wanted whole."""
    fits = whole or not sys.stdout.isatty()
    for line in table(headings, rows, None if fits else shutil.get_terminal_size().columns):
        print(line)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], max_width: int | None = None
) -> list[str]:
    """Lines with columns by width; a column in which every cell begins with a digit goes right.

    Beyond `max_width` the widest column is cut, each cut cell with … at its end.
    """
    by_column = list(zip(headings, *rows, strict=True))
    widths = [max(map(columns, column)) for column in by_column]
    right = [all(cell[:1].isdigit() for cell in column[1:]) for column in by_column]
    if max_width is not None:
        excess = sum(widths) + 2 * (len(widths) - 1) - max_width
        widest = widths.index(max(widths))
        least = min(widths[widest], MIN_COLUMN)
        widths[widest] = max(least, widths[widest] - max(0, excess))
    return [
        "  ".join(
            padded(cut(cell, width), width, to_right=to_right)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (headings, *rows)
    ]


def in_bytes(count: int) -> str:
    """1536 → `1.5 KiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{count} B"


def progress() -> Callable[[str, int, int], None]:
    """A reporter (what, bytes done, bytes in all) for long work, on standard error.

    It redraws one line on a terminal, and prints one line per piece of work elsewhere.
    """
    live = sys.stderr.isatty()
    begun: set[str] = set()

    def report(what: str, done_bytes: int, total_bytes: int) -> None:
        if live and total_bytes:
            amount = f"{in_bytes(done_bytes)} of {in_bytes(total_bytes)}"
            say(f"{what}: {amount}", end="\n" if done_bytes >= total_bytes else "\r")
        elif what not in begun:
            say(what)
        begun.add(what)

    return report
