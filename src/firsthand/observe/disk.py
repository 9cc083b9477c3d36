"""How full the disk is on which Firsthand keeps its files: read when somebody asks.

Owns: the metric. May not know: who asks; what the files are.
Read next: `metrics.py`, the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Metric

from firsthand.observe.instruments import read, read_one
from firsthand.values import dataclass

NAME = "firsthand_disk_used_ratio"


@dataclass(frozen=True, slots=True, eq=False)
class DiskRoom:
    """Asked at each scrape. `folder` may not be there yet."""

    folder: Path

    def collect(self) -> Iterator[Metric]:
        share = used_share(self.folder)
        yield read(NAME, ()) if share is None else read_one(NAME, share)


def used_share(folder: Path) -> float | None:
    """Of the disk under `folder`, what nobody but root can still write to counts as used."""
    there = next((one for one in (folder, *folder.parents) if one.is_dir()), None)
    try:
        found = None if there is None else os.statvfs(there)
    except OSError:
        return None
    if found is None or not found.f_blocks:
        return None
    return 1 - found.f_bavail / found.f_blocks
