"""Where a command begins: a Ctrl-C ends it from its first instruction on, without a traceback.

Owns: what Ctrl-C does before there is a command, and after it; SIGHUP before `serve` listens.
May not know: any other command. Before `main` is called, hardly more than the standard library is
loaded.
Read next: `main.py`.

While modules load, the operating system's own way holds: the process ends at once, by the signal.
As an exception it would be told with a traceback, and where Python cannot raise one (in a callback
of the import system) it would be told and lost. A command then takes it as KeyboardInterrupt.
"""

from __future__ import annotations

import importlib
import signal
import sys


def main() -> None:
    """The console script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored here
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["serve"]:
        # There it means that the settings are to be read again, and they have not been read yet.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from firsthand.processes import expect_little_garbage

    expect_little_garbage()
    importlib.import_module("firsthand.cli.main").main()


if __name__ == "__main__":
    main()
