"""How long the oldest of each class has waited, as a metric: read when somebody asks.

Owns: that. May not know: who asks.
Read next: `recorder.py`, which knows who waits; `metrics.py`, the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from firsthand.observe.instruments import read
from firsthand.observe.recorder import Recorder
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class QueueAges:
    """Asked at each scrape."""

    recorder: Recorder

    def collect(self) -> Iterator[Metric]:
        waits = self.recorder.oldest_waiting()
        samples = [((model, one_class), age_s) for model, one_class, age_s in waits]
        yield read("firsthand_queue_age_seconds_max", samples)
