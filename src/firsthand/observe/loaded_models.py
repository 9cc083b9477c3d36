"""Which models are loaded, as metrics: read when somebody asks.

Owns: what of a registry's members is a metric. May not know: who asks.
Read next: `metrics.py`, `../server/guard/gauges.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from firsthand.generation.registry import Registry
from firsthand.observe.instruments import read
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModels:
    """Asked at each scrape."""

    models: Registry

    def collect(self) -> Iterator[Metric]:
        members = self.models.members
        took = [((one.name,), one.load_s) for one in members if one.load_s is not None]
        yield read("firsthand_model_loaded", [((one.name,), one.resident) for one in members])
        needs = [((one.name,), one.memory_bytes or 0) for one in members]
        yield read("firsthand_model_memory_bytes", needs)
        yield read("firsthand_model_loads", [((one.name,), one.num_loads) for one in members])
        yield read("firsthand_model_load_seconds", took)
