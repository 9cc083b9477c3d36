"""What the guard counts, as metrics: read when somebody asks, so that nothing is counted twice.

Owns: which number of the guard is which metric. May not know: who asks.
Read next: `../../observe/metrics.py`, the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import Metric

from firsthand.observe.instruments import read, read_one
from firsthand.server.guard.connection import Peers
from firsthand.server.guard.gate import Gate
from firsthand.server.guard.idempotency import Replies
from firsthand.server.health import Checks
from firsthand.server.selfcheck import SelfCheck
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class GuardCollector:
    """Asked at each scrape."""

    gate: Gate
    peers: Peers
    replies: Replies
    selfchecks: Mapping[str, SelfCheck]
    readiness: Checks

    def collect(self) -> Iterator[Metric]:
        peers = self.peers
        yield from self._queues()
        yield read_one("firsthand_memory_used_ratio", self.gate.memory_used)
        yield read_one("firsthand_connections", len(peers.connections))
        yield read_one("firsthand_idempotency_bytes", self.replies.num_bytes)
        cut = {
            "too_slow": peers.num_timed_out,
            "malformed": peers.num_malformed,
            "stalled": peers.num_stalled,
        }
        yield read("firsthand_connections_cut", [((why,), number) for why, number in cut.items()])
        answers = self.readiness.run().items()
        yield read("firsthand_check_ok", [((name,), one.ok) for name, one in answers])
        checks = self.selfchecks.items()
        known = [((name,), one.right) for name, one in checks if one.right is not None]
        yield read("firsthand_selfcheck_ok", known)
        yield read("firsthand_selfcheck_wrong", [((name,), one.num_wrong) for name, one in checks])

    def _queues(self) -> Iterator[Metric]:
        """Of each model's queue; model "": before it was known which one is asked for."""
        queues = self.gate.queues.items()
        for metric, values in (
            ("firsthand_degradation_level", [(name, one.level) for name, one in queues]),
            ("firsthand_admitted", [(name, one.num_admitted) for name, one in queues]),
            ("firsthand_admitted_open", [(name, one.num_open) for name, one in queues]),
            ("firsthand_admission_waiting", [(name, one.num_waiting) for name, one in queues]),
            (
                "firsthand_admission_waiting_limit",
                [(name, one.bounds.max_waiting) for name, one in queues],
            ),
            ("firsthand_drain_rate", [(name, one.ended_per_s or 0.0) for name, one in queues]),
            (
                "firsthand_refused",
                [
                    ("", self.gate.num_refused_unnamed),
                    *((name, one.num_refused) for name, one in queues),
                ],
            ),
        ):
            yield read(metric, [((name,), value) for name, value in values])
