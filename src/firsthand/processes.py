"""What the system says of another process.

Owns: the processor time that it has used.
May not know: what the process does, or who asks.
Read next: `text/template_process.py`, `generation/process.py`: a limit by the clock alone would end
what only waits for a busy machine.
"""

from __future__ import annotations

import os
from pathlib import Path


def processor_s(pid: int) -> float | None:
    """Processor time of all its threads, in seconds; None where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        user, system = stat.rpartition(")")[2].split()[11:13]  # its name may hold anything
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
