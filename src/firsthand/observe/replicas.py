"""The replicas of models, as metrics: read when somebody asks.

Owns: what of a replica is a metric. May not know: where it runs, how it is reached.
Read next: `loaded_models.py`, the same of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric

from firsthand.generation.registry import Registry
from firsthand.generation.service_values import Replica
from firsthand.observe.instruments import read
from firsthand.values import dataclass

_OF_EACH: dict[str, Callable[[Replica], float]] = {
    "firsthand_replica_in_rotation": lambda one: one.in_rotation,
    "firsthand_replica_open": lambda one: one.num_open,
    "firsthand_replica_running": lambda one: one.num_running,
    "firsthand_replica_waiting": lambda one: one.num_waiting,
    "firsthand_replica_used_blocks": lambda one: one.num_used_blocks,
    "firsthand_replica_cpu_seconds": lambda one: one.cpu_s,
    "firsthand_replica_engine_restarts": lambda one: one.num_restarts,
}


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaGauges:
    """Asked at each scrape."""

    models: Registry

    def collect(self) -> Iterator[Metric]:
        states = [(one.name, one.service.state.replicas) for one in self.models.members]
        several = [(name, replicas) for name, replicas in states if replicas is not None]
        for metric, value in _OF_EACH.items():
            yield read(
                metric,
                [
                    ((name, str(one.slot)), value(one))
                    for name, replicas in several
                    for one in replicas.each
                ],
            )
        yield read("firsthand_replica_losses", [((name,), one.num_lost) for name, one in several])
        yield read("firsthand_replica_moves", [((name,), one.num_moved) for name, one in several])
