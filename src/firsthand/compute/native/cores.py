"""How many threads may compute: the cores that this process really has.

Owns: what affinity and the cgroup's quota leave. May not know: who computes what.
Read next: `executor.py`.
"""

from __future__ import annotations

import os

from firsthand.config import MAX_THREADS


def available_threads() -> int:
    """The cores that this process may really use: its affinity, and the cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cgroup_cores("/sys/fs/cgroup/cpu.max")
    return max(1, min(cores or 1, quota or MAX_THREADS, MAX_THREADS))


def _cgroup_cores(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            quota, period = file.read().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))
