"""The machine's limits, measured once and kept: an estimate must not cost more than it is worth.

Owns: where they are kept, and for which machine and sizes they hold.
May not know: how they are measured.
Read next: `limits.py`.

    HOME/limits.json    a row for each number of threads and class of size (a power of four)
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firsthand.compute.native import _native
from firsthand.errors import CheckpointError
from firsthand.files import parse_json_object, read_whole
from firsthand.measure.limits import measure_limits
from firsthand.values import dataclass
from firsthand.weights.places import write_atomically

MOST_READ_BYTES = 1 << 30  # more is as far from any cache
MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class KnownLimits:
    """As `MachineLimits`; `origin` says whether they were measured now or when."""

    read_gb_per_second: float
    int8_gmac_per_second: float
    origin: str


def known_limits(num_bytes: int, threads: int, home: Path) -> KnownLimits:
    """From the record, else measured now (about a second) and kept."""
    path, row = home / "limits.json", f"{_native.isa('')} {threads} {_size_class(num_bytes)}"
    kept = _read(path)
    found = kept.get(row)
    if isinstance(found, dict):
        with suppress(KeyError, TypeError, ValueError):
            day = datetime.fromtimestamp(int(found["measured_s"]), UTC).date()
            rates = float(found["read_gb_per_second"]), float(found["int8_gmac_per_second"])
            if min(rates) > 0:
                return KnownLimits(*rates, f"measured on {day}")
    measured = measure_limits(_size_class(num_bytes), threads)
    kept[row] = {**measured.to_dict(), "measured_s": int(time.time())}
    with suppress(OSError):  # a home that cannot be written costs a second next time
        write_atomically(path, json.dumps(kept, indent=1).encode())
    return KnownLimits(measured.read_gb_per_second, measured.int8_gmac_per_second, "measured now")


def _size_class(num_bytes: int) -> int:
    size = 1 << 20
    while size < min(num_bytes, MOST_READ_BYTES):
        size *= 4
    return size


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(parse_json_object(read_whole(path, MAX_BYTES), str(path), 4096))
    except (CheckpointError, OSError):
        return {}
