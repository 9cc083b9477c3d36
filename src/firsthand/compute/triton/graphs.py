"""Steps that were captured once and are replayed: one CUDA graph for each bucket of rows.

Owns: which buckets are captured, and how.
May not know: operators, what a step computes.
Read next: `../buckets.py`, which bucket a step gets and how hits are counted; `executor.py`.

A step of a few rows is hundreds of launches, each of which costs the host more than the card needs
for it. A graph is one launch. It always runs over the same memory, which the arena and the step's
buffer promise, and over a number of rows of its own: below the step's rows come rows of padding,
which stand at no position, write nothing and are read by nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from firsthand.compute.buckets import Buckets, CompileFacts

DEFAULT_GRAPHS = (1, 2, 4, 8, 16, 32, 64)

Capture = Callable[[Callable[[], None]], Callable[[], None]]


class Graphs:
    """`capture` makes of a call one that replays it."""

    def __init__(self, sizes: tuple[int, ...], capture: Capture) -> None:
        self._buckets = Buckets(sizes)
        self._capture = capture
        self._replays: dict[int, Callable[[], None]] = {}

    def capture(self, run: Callable[[int], None]) -> None:
        """Every bucket, the largest first: the others find its kernels compiled."""
        for rows in reversed(self._buckets.num_rows):
            started_s = time.perf_counter()
            self._replays[rows] = self._capture(lambda rows=rows: run(rows))  # type: ignore[misc]
            self._buckets.add_compile_ms(rows, (time.perf_counter() - started_s) * 1e3)

    def choose(self, num_rows: int) -> int | None:
        """The bucket of a step of so many rows."""
        return self._buckets.choose(num_rows)

    def count(self, num_rows: int | None) -> None:
        """A step of the engine runs now; None: one that no graph can run."""
        if num_rows is None:
            self._buckets.count_miss()
        else:
            self._buckets.count(num_rows)

    def replay(self, bucket: int) -> None:
        self._replays[bucket]()

    def facts(self) -> CompileFacts:
        return self._buckets.facts()


class CudaCapture:
    """Runs a call once as it is, so that kernels are compiled and libraries have their memory, and
    then once more while the device writes down instead of computing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        replay: Callable[[], None] = graph.replay
        return replay
