"""How busy a replica is, as it reports it for autoscaling.

Owns: its first tokens of the last minute, its share of processor and device.
May not know: who asks, what is decided by it.
Read next: `autoscaling/readings.py`, the names; `replica.py`, which tells it what happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from firsthand.cluster.autoscaling.readings import figures
from firsthand.observe.gpus import find_gpus
from firsthand.percentile import percentile
from firsthand.processes import processor_s
from firsthand.request import TokenEvent

WINDOW_S = 60.0
LEAST_ANSWERS = 10  # fewer have no 99th of a hundred


class OwnLoad:
    """`num_cores`: what the replica may use. `clock` is that of the engine's events, in seconds."""

    def __init__(self, num_cores: float, device: str, clock: Callable[[], float]) -> None:
        self._num_cores = num_cores
        self._gpus = None if device == "cpu" else find_gpus()
        self._clock = clock
        self._asked: dict[str, float] = {}
        self._first: deque[tuple[float, float]] = deque()  # when, and ms since it was asked for
        self._spent: tuple[float, float] | None = None  # when, and seconds of processor by then

    def asked(self, request_id: str) -> None:
        self._asked[request_id] = self._clock()

    def stepped(self, events: Iterable[TokenEvent]) -> None:
        if not self._asked:
            return
        for event in events:
            if event.token_id is not None:
                asked_s = self._asked.pop(event.request_id, None)
                if asked_s is not None:
                    self._first.append((event.at_s, (event.at_s - asked_s) * 1e3))

    def ended(self, request_id: str) -> None:
        self._asked.pop(request_id, None)

    def report(self, running: int, waiting: int, pids: Iterable[int]) -> dict[str, float]:
        """Of now; the processor's share is that since the report before."""
        now_s = self._clock()
        while self._first and now_s - self._first[0][0] > WINDOW_S:
            self._first.popleft()
        first_ms = [ms for _, ms in self._first]
        return figures(
            running=running,
            waiting=waiting,
            cpu=self._processor(now_s, pids),
            device=self._device(),
            p99_ttft_ms=percentile(first_ms, 0.99) if len(first_ms) >= LEAST_ANSWERS else None,
        )

    def _processor(self, now_s: float, pids: Iterable[int]) -> float | None:
        spent = [processor_s(pid) for pid in pids]
        before, self._spent = self._spent, (now_s, sum(one for one in spent if one is not None))
        if before is None or now_s <= before[0] or None in spent:
            return None
        share = (self._spent[1] - before[1]) / (now_s - before[0]) / self._num_cores
        return min(1.0, share) if share >= 0 else None  # less: the engine is another process now

    def _device(self) -> float | None:
        if self._gpus is None:
            return None
        busy, *_ = self._gpus.collect()
        shares = [sample.value for sample in busy.samples]
        return sum(shares) / len(shares) if shares else None
