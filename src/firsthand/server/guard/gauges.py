"""What the guard counts, as metrics: read when somebody asks, so that nothing is counted twice.

Owns: these metrics' names. May not know: who asks.
Read next: `../metrics.py`, the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from firsthand.server.guard.connection import Peers
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.idempotency import Replies
from firsthand.server.selfcheck import SelfCheck
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class GuardCollector:
    """Asked at each scrape."""

    gate: Gate
    peers: Peers
    replies: Replies
    selfchecks: Mapping[str, SelfCheck]

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        gate, peers, replies = self.gate, self.peers, self.replies
        yield from self._queues()
        yield _gauge("firsthand_memory_used_ratio", "Of the machine's", gate.memory_used)
        yield _gauge("firsthand_connections", "Open ones", len(peers.connections))
        yield _gauge("firsthand_idempotency_bytes", "Of replies that are kept", replies.num_bytes)
        yield from self._selfchecks()
        cut = CounterMetricFamily("firsthand_connections_cut", "Ended by us", labels=["reason"])
        for reason, number in (
            ("too_slow", peers.num_timed_out),
            ("malformed", peers.num_malformed),
            ("stalled", peers.num_stalled),
        ):
            cut.add_metric([reason], number)
        yield cut

    def _queues(self) -> Iterator[Metric]:
        """Of each model's queue."""
        gauges = {
            "firsthand_degradation_level": "0 serves everything, 4 the core",
            "firsthand_admitted_open": "Requests that were let in",
            "firsthand_admission_waiting": "Places beyond those that run",
            "firsthand_admission_waiting_limit": "As many may wait",
            "firsthand_drain_rate": "Places that end per second",
        }
        model = ["model"]
        shown = {name: GaugeMetricFamily(name, text, labels=model) for name, text in gauges.items()}
        text = "Requests that were let in"
        let_in = CounterMetricFamily("firsthand_admitted", text, labels=model)
        text = "Requests that were not"
        refused = CounterMetricFamily("firsthand_refused", text, labels=model)
        if self.gate.num_refused_unnamed:  # before it was known which model they ask for
            refused.add_metric([""], self.gate.num_refused_unnamed)
        for name, queue in self.gate.queues.items():
            values = (
                queue.level,
                queue.num_open,
                queue.num_waiting,
                queue.bounds.max_waiting,
                queue.ended_per_s or 0.0,
            )
            for family, value in zip(shown.values(), values, strict=True):
                family.add_metric([name], float(value))
            let_in.add_metric([name], queue.num_admitted)
            refused.add_metric([name], queue.num_refused)
        yield from (*shown.values(), let_in, refused)

    def _selfchecks(self) -> Iterator[Metric]:
        text = "1: the golden tokens are equal"
        right = GaugeMetricFamily("firsthand_selfcheck_ok", text, labels=["model"])
        text = "Self-checks that differed"
        wrong = CounterMetricFamily("firsthand_selfcheck_wrong", text, labels=["model"])
        for name, check in self.selfchecks.items():
            wrong.add_metric([name], check.num_wrong)
            if check.right is not None:
                right.add_metric([name], float(check.right))
        yield right
        yield wrong


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))
