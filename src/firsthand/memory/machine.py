"""What memory a new process could still have: the machine's, and that of its control groups.

Owns: which files say so.
May not know: what it is for.
Read next: `budget.py`.

A container's limit is not the machine's: a process that took what the machine has would be ended.
Limits nest, so every group above ours counts. Pages of files that nobody has used lately are given
back before anyone is ended: they count as free.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from firsthand.values import dataclass

UNLIMITED = 2**60  # version 1 writes the largest number of whole pages for "no limit"


@dataclass(frozen=True, slots=True)
class _Version:
    """Where a version of control groups is mounted, and how its files are called."""

    mount: str
    limits: tuple[str, ...]
    usage: str
    inactive: str


V1 = _Version(
    "sys/fs/cgroup/memory",
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    "total_inactive_file",
)
V2 = _Version("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "inactive_file")


def free_bytes(root: Path = Path("/")) -> int | None:
    """The least of what the machine and each group have left; None where nothing says so."""
    found = [left for left, _ in (*_machine(root), *_groups(root))]
    return min(found) if found else _physical()


def used_share(root: Path = Path("/")) -> float | None:
    """Of the memory that this process could have at all, the part in use, 0 … 1: the machine's, or
    that of the tightest group. None where nothing says so."""
    shares = [1 - left / whole for left, whole in (*_machine(root), *_groups(root)) if whole]
    return min(1.0, max(0.0, *shares)) if shares else None


def _machine(root: Path) -> Iterator[tuple[int, int]]:
    """What is left, and of how much."""
    text = _read(root / "proc/meminfo")
    left = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    whole = re.search(r"^MemTotal:\s+(\d+) kB$", text, re.MULTILINE)
    if left is not None:
        yield int(left[1]) * 1024, 0 if whole is None else int(whole[1]) * 1024


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            version = V2
        elif "memory" in controllers.split(","):
            version = V1
        else:
            continue
        for folder in _ancestors(root / version.mount, path):
            yield from _left(folder, version)


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above it. What a container may not see is not there."""
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _left(folder: Path, version: _Version) -> Iterator[tuple[int, int]]:
    limits = [_number(folder / name) for name in version.limits]
    limit = min((limit for limit in limits if limit is not None), default=UNLIMITED)
    usage = _number(folder / version.usage)
    if limit >= UNLIMITED or usage is None:
        return
    pattern = rf"^{version.inactive} (\d+)$"
    inactive = re.search(pattern, _read(folder / "memory.stat"), re.MULTILINE)
    yield max(0, limit - usage + (0 if inactive is None else int(inactive[1]))), limit


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text, re.ASCII) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except (OSError, ValueError):  # a name that is no path
        return ""


def _physical() -> int | None:
    """Systems without /proc say only how much there is."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
