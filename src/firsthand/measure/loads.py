"""The ways to load a model, each in processes of its own: time to ready, to a token, and memory.

Owns: which ways are compared.
May not know: what a way does.
Read next: `startup.py`, which starts the processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from firsthand.generation.loading import pack_model
from firsthand.measure.startup import Startup, measure_startup
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class LoadWay:
    """One way, measured. `way`: packing (whole, from the model's own file), whole (from the packed
    form), shards (under `memory_limit`, or the default one)."""

    way: str
    found: Startup

    def to_dict(self) -> dict[str, Any]:
        return {"way": self.way, **asdict(self.found)}


def measure_loads(
    model: str, options: Mapping[str, Any], repeats: int = 3, shards_limit: str | None = None
) -> list[LoadWay]:
    """`shards_limit` is the memory limit of the way in shards alone. The packed form is made first,
    outside the times. Raises as `measure_startup`."""
    pack_model(model, options.get("quantization", "auto"))
    limited = {} if shards_limit is None else {"memory_limit": shards_limit}
    ways: dict[str, dict[str, Any]] = {
        "packing": {"pack_cache": False, "load": "whole"},
        "whole": {"pack_cache": True, "load": "whole"},
        "shards": {"pack_cache": True, "load": "shards", **limited},
    }
    return [
        LoadWay(way, measure_startup(model, {**options, **changed}, repeats))
        for way, changed in ways.items()
    ]
