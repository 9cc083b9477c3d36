"""Whether a grammar can be compiled, asked in a process that may be killed.

Owns: that process, its clock, and the verdicts that need not be asked again.
May not know: what a grammar is, who asks.
Read next: `grammar_worker.py`, the child; `grammar.py`, which compiles what was found right.

A grammar is text from outside, and no count of work is known to cover all that a compiler may do
with one. So it is compiled here first, alone, with a limit of processor time and of memory; what
passes is compiled again where it is needed, in about the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from firsthand.engine.grammar_worker import CPU_S
from firsthand.errors import CapacityExceeded, EngineError, InvalidRequest
from firsthand.request import Grammar

MAX_VERDICTS = 256
MAX_VERDICT_CHARS = 4 << 20
WAIT_S = 10.0  # for those that came before
WALL_S = 20.0  # for a process that gets hardly any time
START_S = 30.0


class GrammarProcess:
    """One child, started with the first grammar and after each that it did not survive. For any
    thread; one grammar at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[Grammar, str | None] = OrderedDict()
        self._num_chars = 0
        self._child: subprocess.Popen[str] | None = None
        self._closed = False

    def check(self, grammar: Grammar) -> None:
        """Raises InvalidRequest, naming the grammar's field; CapacityExceeded when too many ask;
        EngineError when no process can be started."""
        if not self._lock.acquire(timeout=WAIT_S):
            raise CapacityExceeded("too many grammars wait to be compiled")
        try:
            if grammar in self._verdicts:
                self._verdicts.move_to_end(grammar)
                error = self._verdicts[grammar]
            else:
                error = self._ask(grammar)
                self._remember(grammar, error)
        finally:
            self._lock.release()
        if error is not None:
            raise InvalidRequest(grammar.field, f"cannot be used: {error}")

    def reap(self) -> None:
        """Let the system forget a child that was ended from outside; the next grammar starts
        another. To be called now and then by whoever lives long."""
        child = self._child
        if child is not None:
            child.poll()

    def close(self) -> None:
        """End the child; later checks raise EngineError. May be called again."""
        self._closed = True
        self._end()

    def _ask(self, grammar: Grammar) -> str | None:
        asked = {"kind": grammar.kind.value, "text": grammar.text, "lead": grammar.lead}
        child = self._ready_child()
        try:
            reply = _exchange(child, json.dumps(asked) + "\n", WALL_S)
        except BaseException:  # an interrupt: its answer would be the next one's
            self._end()
            raise
        if not reply:
            self._end()
            return f"it needs more than {CPU_S:g} s or too much memory to compile"
        error = json.loads(reply)["error"]
        return None if error is None else str(error)

    def _ready_child(self) -> subprocess.Popen[str]:
        if self._closed:
            raise EngineError("the compiler of grammars is closed")
        if self._child is None or self._child.poll() is not None:
            self._end()
            script = Path(__file__).with_name("grammar_worker.py")
            try:
                self._child = subprocess.Popen(
                    [sys.executable, "-I", str(script)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={} if os.name == "posix" else None,  # nothing there to be read
                    text=True,
                    encoding="ascii",
                    process_group=0,  # the terminal's interrupt is the parent's
                )
            except OSError as error:
                raise EngineError(f"the compiler of grammars does not start: {error}") from None
            weakref.finalize(self, _kill, self._child)
            if _exchange(self._child, "", START_S) != "ready\n":
                self._end()
                raise EngineError("the compiler of grammars does not start")
        return self._child

    def _remember(self, grammar: Grammar, error: str | None) -> None:
        self._verdicts[grammar] = error
        self._num_chars += len(grammar.text)
        while len(self._verdicts) > MAX_VERDICTS or self._num_chars > MAX_VERDICT_CHARS:
            oldest, _ = self._verdicts.popitem(last=False)
            self._num_chars -= len(oldest.text)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            _kill(child)


def _exchange(child: subprocess.Popen[str], line: str, limit_s: float) -> str:
    """Its next line; empty when it has died, or was killed for its silence."""
    assert child.stdin is not None and child.stdout is not None
    clock = threading.Timer(limit_s, child.kill)
    clock.daemon = True
    clock.start()
    try:
        if line:
            child.stdin.write(line)
            child.stdin.flush()
        return child.stdout.readline()
    except OSError:
        return ""
    finally:
        clock.cancel()


def _kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):  # unsent text that the child did not live to read
                stream.close()
