"""Which models are loaded, as metrics: read when somebody asks.

Owns: these metrics' names. May not know: who asks.
Read next: `metrics.py`, `guard/gauges.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from firsthand.generation.registry import Registry
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class RegistryCollector:
    """Asked at each scrape."""

    models: Registry

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        loaded = GaugeMetricFamily("firsthand_model_loaded", "1: with an engine", labels=["model"])
        text = "That it needs, of the limit of all models"
        memory = GaugeMetricFamily("firsthand_model_memory_bytes", text, labels=["model"])
        loads = CounterMetricFamily("firsthand_model_loads", "That ended well", labels=["model"])
        took = GaugeMetricFamily("firsthand_model_load_seconds", "Of the last", labels=["model"])
        for member in self.models.members:
            loaded.add_metric([member.name], float(member.resident))
            memory.add_metric([member.name], float(member.need_bytes))
            loads.add_metric([member.name], member.num_loads)
            if member.load_s is not None:
                took.add_metric([member.name], member.load_s)
        yield from (loaded, memory, loads, took)
