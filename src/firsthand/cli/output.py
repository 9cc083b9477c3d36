"""What the commands say: data to standard output, everything else to standard error.

Owns: the one line of `--json`, the mapping from errors to exit codes, tables, progress.
May not know: what any command computes.
Read next: `main.py`.

With `--json` standard output gets exactly one line, also when the command fails: then it is
{"error": {"type": …, "message": …}}, and the exit code says what kind of failure it was.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

import typer

from firsthand.errors import (
    CapacityExceeded,
    DownloadFailed,
    FirsthandError,
    InvalidRequest,
    ModelNotFound,
)

FAILED = 1
USAGE = 2
CHECK_FAILED = 3
NO_MODEL = 4
NO_MEMORY = 5
INTERRUPTED = 130


def speak_utf8() -> None:
    """UTF-8 in and out, whatever the locale says: text is data, and must not raise half way."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(sys.stdin, TextIOWrapper):
        # Bytes that are no UTF-8 become lone surrogates, which the tokenizer refuses by name.
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")


def print_json(value: Any) -> None:
    """The one line. NaN and infinity have no JSON form and are a fault of ours."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def say(message: str) -> None:
    """A line for the person, not for a program."""
    print(message, file=sys.stderr, flush=True)


def exit_code(error: BaseException) -> int:
    """The exit code of a failure, as README.md lists them."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, InvalidRequest):
        return USAGE
    if isinstance(error, ModelNotFound | DownloadFailed):
        return NO_MODEL
    if isinstance(error, CapacityExceeded | MemoryError):
        return NO_MEMORY
    return FAILED


@contextmanager
def reported(as_json: bool = False) -> Iterator[None]:
    """Turn what a command raises into a message and an exit code.

    An error of `errors.py` is for the user and has no traceback; any other is a fault of ours
    and keeps it.
    """
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except (Exception, KeyboardInterrupt) as error:
        if not isinstance(error, FirsthandError | KeyboardInterrupt | MemoryError):
            traceback.print_exc()
        message = str(error) or {
            KeyboardInterrupt: "interrupted",
            MemoryError: "out of memory",
        }.get(type(error), type(error).__name__)
        if as_json:
            print_json({"error": {"type": type(error).__name__, "message": message}})
        say(f"error: {message}")
        raise typer.Exit(exit_code(error)) from None


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in table(headings, rows):
        print(line)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns by width; a column in which every cell begins with a digit goes right."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell[:1].isdigit() for cell in column[1:]) for column in columns]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
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
            end = "\n" if done_bytes >= total_bytes else ""
            amount = f"{in_bytes(done_bytes)} of {in_bytes(total_bytes)}"
            print(f"\r{what}: {amount}\x1b[K", end=end, file=sys.stderr, flush=True)
        elif what not in begun:
            say(what)
        begun.add(what)

    return report
