"""What the guard counts, as metrics: read when somebody asks, so that nothing is counted twice.

Owns: these metrics' names. May not know: who asks.
Read next: `../metrics.py`, the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from firsthand.server.guard.connection import Peers
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.idempotency import Replies
from firsthand.server.selfcheck import SelfCheck


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
        yield _gauge("firsthand_degradation_level", "0 serves everything, 4 the core", gate.level)
        yield _gauge("firsthand_admitted_open", "Requests that were let in", gate.num_open)
        yield _gauge(
            "firsthand_admission_waiting", "Places beyond those that run", gate.num_waiting
        )
        yield _gauge("firsthand_drain_rate", "Places that end per second", gate.ended_per_s or 0.0)
        yield _gauge("firsthand_memory_used_ratio", "Of the machine's", gate.memory_used)
        yield _gauge("firsthand_connections", "Open ones", len(peers.connections))
        yield _gauge("firsthand_idempotency_bytes", "Of replies that are kept", replies.num_bytes)
        yield from self._selfchecks()
        yield _counter("firsthand_admitted", "Requests that were let in", gate.num_admitted)
        yield _counter("firsthand_refused", "Requests that were not", gate.num_refused)
        cut = CounterMetricFamily("firsthand_connections_cut", "Ended by us", labels=["reason"])
        for reason, number in (
            ("too_slow", peers.num_timed_out),
            ("malformed", peers.num_malformed),
            ("stalled", peers.num_stalled),
        ):
            cut.add_metric([reason], number)
        yield cut

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


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(name, text, value=value)
