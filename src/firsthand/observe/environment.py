"""What a report of a fault has to say of the machine and the installation, and nothing secret.

Owns: which facts those are. May not know: how they are printed; models, servers.
Read next: `../cli/collect_env.py`.

Of variables only the names are told: a value may be a key. Nothing is sent anywhere.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from firsthand.compute.native import _native
from firsthand.config import Environment, service_variables
from firsthand.errors import FirsthandError
from firsthand.memory.machine import free_bytes, used_share
from firsthand.observe.gpus import find_gpus
from firsthand.version import VERSION

PROGRAMS = ("promtool", "amtool", "prometheus", "prometheus-alertmanager", "chromium")


def collected(environment: Environment) -> dict[str, Any]:
    """Plain values, by topic; null is what cannot be known here."""
    return {
        "firsthand": {
            "version": VERSION,
            "instruction_set": _instruction_set(environment),
            "threads": environment.threads,
            "home": str(environment.home),
            "disk_free_bytes": _disk_free(environment.home),
            "variables": sorted(service_variables()),
        },
        "machine": {
            "system": platform.platform(),
            "processor": _processor(Path("/proc/cpuinfo")) or platform.processor() or None,
            "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
            "memory_free_bytes": free_bytes(),
            "memory_used_ratio": used_share(),
            "gpus": _gpus(),
        },
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "libraries": _libraries(),
        "programs": {name: shutil.which(name) for name in PROGRAMS},
    }


def _instruction_set(environment: Environment) -> str | None:
    try:
        return _native.isa(environment.isa or "")
    except (FirsthandError, ValueError, RuntimeError):  # one that this machine has not
        return None


def _processor(file: Path) -> str | None:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else found[1]


def _disk_free(folder: Path) -> int | None:
    there = next((one for one in (folder, *folder.parents) if one.is_dir()), None)
    return None if there is None else shutil.disk_usage(there).free


def _gpus() -> list[str]:
    found = find_gpus()
    return [] if found is None else list(found.names())


def _libraries() -> Mapping[str, str | None]:
    """Those that this package names, also the optional ones; null: not installed."""
    try:
        wanted = metadata.requires("firsthand") or []
    except metadata.PackageNotFoundError:  # the source tree, not installed
        return {}
    names = dict.fromkeys(re.split(r"[^A-Za-z0-9_.-]", one, maxsplit=1)[0] for one in wanted)
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
