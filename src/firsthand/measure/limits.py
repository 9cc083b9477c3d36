"""What this machine can do at most: measured by bare loops, in the process that asks.

Owns: which loops count for which limit.
May not know: models. A limit is of a machine, a number of threads and a size of memory.
Read next: `compute/native/csrc/limits.hpp`, the loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firsthand.checks import check_integer
from firsthand.compute.native import _native
from firsthand.config import MAX_THREADS
from firsthand.values import dataclass

NUM_ROUNDS = 3  # so that a neighbour who is busy for a moment does not lower a limit
LOOP_MS = 15.0  # per loop and round
READ_MS = 25.0  # per way to read, and round
MAX_READ_BYTES = 2**36


@dataclass(frozen=True, slots=True)
class LoopRate:
    """One bare loop. `unit` int8: 10⁹ multiply-accumulates a second; fp32: 10⁹ operations."""

    isa: str
    name: str
    unit: str
    rate: float


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The limits with so many threads. The read rate is that of `read_bytes` read over and over."""

    threads: int
    read_bytes: int
    read_gb_per_second: float
    int8_gmac_per_second: float
    fp32_gflops: float
    loops: tuple[LoopRate, ...] = ()

    @property
    def fp32_gmac_per_second(self) -> float:
        """A multiply-accumulate is two operations."""
        return self.fp32_gflops / 2

    def raised(self, reached: Rates) -> MachineLimits:
        """A limit is never below what a kernel reached."""
        return replace(
            self,
            read_gb_per_second=max(self.read_gb_per_second, reached.read_gb_per_second),
            int8_gmac_per_second=max(self.int8_gmac_per_second, reached.int8_gmac_per_second),
            fp32_gflops=max(self.fp32_gflops, reached.fp32_gflops),
        )

    def to_dict(self) -> dict[str, float]:
        return {
            "read_gb_per_second": self.read_gb_per_second,
            "int8_gmac_per_second": self.int8_gmac_per_second,
            "fp32_gflops": self.fp32_gflops,
        }


@dataclass(frozen=True, slots=True)
class Rates:
    """What the kernels of a run reached, in the units of `MachineLimits`; 0 where none ran."""

    read_gb_per_second: float = 0.0
    int8_gmac_per_second: float = 0.0
    fp32_gflops: float = 0.0


def measure_limits(num_bytes: int, threads: int) -> MachineLimits:
    """Measure this machine, about a second. `num_bytes`: how much is read, that of the weights.

    The best loop counts, whichever instruction set it is of. Raises InvalidRequest, or MemoryError
    when there is no room for `num_bytes`.
    """
    check_integer("num_bytes", num_bytes, 1, MAX_READ_BYTES)
    check_integer("threads", threads, 1, MAX_THREADS)
    pool = _native.Threads(threads)
    names = _native.limit_loops()
    rates = [0.0] * len(names)
    read_rate = 0.0
    for _ in range(NUM_ROUNDS):
        rates = [
            max(rate, _native.loop_rate(index, pool, LOOP_MS)) for index, rate in enumerate(rates)
        ]
        read_rate = max(read_rate, _native.read_rate(num_bytes, pool, READ_MS))
    loops = tuple(LoopRate(*name, rate) for name, rate in zip(names, rates, strict=True))
    return MachineLimits(
        threads=threads,
        read_bytes=num_bytes,
        read_gb_per_second=read_rate,
        int8_gmac_per_second=_best(loops, "int8"),
        fp32_gflops=_best(loops, "fp32"),
        loops=loops,
    )


def _best(loops: Sequence[LoopRate], unit: str) -> float:
    return max(loop.rate for loop in loops if loop.unit == unit)
