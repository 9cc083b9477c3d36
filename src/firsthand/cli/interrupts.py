"""Ctrl-C while a command runs, and where it is wanted SIGTERM: as an exception, and never lost.

Owns: the handler of SIGINT, from a command's begin to its end.
May not know: what a command does about it.
Read next: `entry.py` (before and after), `main.py`.
"""

from __future__ import annotations

import _thread
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt; afterwards it ends the process at once. Whoever had
    it ignored from the beginning (a shell's `&`, `nohup`) is not interrupted at all."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    told = sys.unraisablehook
    sys.unraisablehook = _raised_again(told)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.unraisablehook = told


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM ends the command in order, as Ctrl-C does."""

    def ended(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raised_again(told: Any) -> Any:
    """Python tells of what is raised in a finalizer, and goes on: an interrupt comes again."""

    def hook(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            _thread.interrupt_main()
        else:
            told(what)

    return hook
