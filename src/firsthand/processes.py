"""What the system says of another process, and how one of ours begins.

Owns: the processor time that a process has used, the memory that it holds, the most that this one
held; which it has started; how often one looks for garbage.
May not know: what the process does, or who asks.
Read next: `text/template_process.py`, `generation/process.py`: a limit by the clock alone would end
what only waits for a busy machine.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path


def expect_little_garbage() -> None:
    """For the first lines of a program. To load our modules makes a hundred thousand objects that
    all stay; Python's default, a look at every 700, is 75 looks and 20 ms by then."""
    gc.set_threshold(20_000)


def processor_s(pid: int) -> float | None:
    """Processor time of all its threads, in seconds; None where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        user, system = stat.rpartition(")")[2].split()[11:13]  # its name may hold anything
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


def children(pid: int) -> list[tuple[int, str]]:
    """Those that it started and that are there, each with its command line; none where the system
    does not say."""
    found = []
    for told in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in told.read_text(encoding="ascii").split():
                line = Path(f"/proc/{child}/cmdline").read_bytes()
                found.append((int(child), line.replace(b"\0", b" ").decode("utf-8", "replace")))
    return found


def resident_bytes(pid: int) -> int | None:
    """Memory of it that is in the machine's; None where the system does not say."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def peak_resident_bytes() -> int:
    """The most memory that this program has had resident. On Linux from /proc: the figure of
    getrusage outlives an exec, so a child would tell its parent's."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    found = status.partition("VmHWM:")[2].split(maxsplit=1)
    if found:
        return int(found[0]) * 1024
    import resource  # nowhere else is it needed, and not every system has it

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def boot_id() -> str:
    """Of this start of this machine, whose clocks all its processes share; "": it does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
