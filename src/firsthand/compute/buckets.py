"""A few numbers of rows for which a step is compiled, and how often each one served.

Owns: which bucket a step goes to, and the counts that a person sees.
May not know: torch, what a row is, how anything is compiled.
Read next: `torch/compiled.py`, which pads a step to its bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Protocol, runtime_checkable

from firsthand.checks import check_integer, shown
from firsthand.errors import InvalidRequest
from firsthand.values import dataclass

DEFAULT_BUCKETS = (128, 256, 512, 1024)
MAX_BUCKETS = 16
MAX_BUCKET_ROWS = 65536
MIN_FILL = 2  # a bucket takes a step of at least one row in two: padding costs as much as rows do


@dataclass(frozen=True, slots=True)
class BucketUse:
    """One bucket: steps that ran in it, rows that were padding, and the time to compile it."""

    num_rows: int
    num_hits: int
    num_padded_rows: int
    compile_ms: float


@dataclass(frozen=True, slots=True)
class CompileFacts:
    """Every bucket since the load, and the steps that fitted none and ran operator by operator."""

    buckets: tuple[BucketUse, ...]
    num_misses: int

    @property
    def num_hits(self) -> int:
        return sum(bucket.num_hits for bucket in self.buckets)

    @property
    def hit_rate(self) -> float | None:
        """None before the first step."""
        steps = self.num_hits + self.num_misses
        return self.num_hits / steps if steps else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "hit_rate": self.hit_rate,
            "num_hits": self.num_hits,
            "num_misses": self.num_misses,
            "buckets": [
                {name: getattr(bucket, name) for name in BucketUse.__slots__}
                for bucket in self.buckets
            ],
        }


@runtime_checkable
class Compiles(Protocol):
    """An executor that can say what its compiled steps did."""

    def compiled_steps(self) -> CompileFacts | None:
        """None when it compiles nothing."""


@dataclass(slots=True)
class Buckets:
    """`num_rows` ascending, each once."""

    num_rows: tuple[int, ...]
    _num_hits: dict[int, int] = field(default_factory=dict)
    _num_padded_rows: dict[int, int] = field(default_factory=dict)
    _compile_ms: dict[int, float] = field(default_factory=dict)
    _num_misses: int = 0

    def choose(self, num_rows: int) -> int | None:
        """The smallest bucket that holds a step, or None: it is too large, or nearly empty."""
        for bucket in self.num_rows:
            if num_rows <= bucket:
                return bucket if num_rows * MIN_FILL >= bucket else None
        return None

    def count(self, num_rows: int) -> None:
        """A step of this size runs now: a hit of its bucket, or a miss."""
        bucket = self.choose(num_rows)
        if bucket is None:
            self.count_miss()
            return
        self._num_hits[bucket] = self._num_hits.get(bucket, 0) + 1
        padded = self._num_padded_rows.get(bucket, 0)
        self._num_padded_rows[bucket] = padded + bucket - num_rows

    def count_miss(self) -> None:
        """A step that no bucket takes, whatever its size."""
        self._num_misses += 1

    def add_compile_ms(self, bucket: int, ms: float) -> None:
        self._compile_ms[bucket] = self._compile_ms.get(bucket, 0.0) + ms

    def facts(self) -> CompileFacts:
        return CompileFacts(
            tuple(
                BucketUse(
                    bucket,
                    self._num_hits.get(bucket, 0),
                    self._num_padded_rows.get(bucket, 0),
                    self._compile_ms.get(bucket, 0.0),
                )
                for bucket in self.num_rows
            ),
            self._num_misses,
        )


def check_buckets(sizes: Sequence[int] | None) -> tuple[int, ...]:
    """Ascending and each once; the default for None. Raises InvalidRequest("compile_buckets")."""
    name = "compile_buckets"
    if sizes is None:
        return DEFAULT_BUCKETS
    if not isinstance(sizes, list | tuple) or not 1 <= len(sizes) <= MAX_BUCKETS:
        raise InvalidRequest(
            name, f"must be a list of 1 to {MAX_BUCKETS} numbers of rows, not {shown(sizes)}"
        )
    for size in sizes:
        check_integer(name, size, 1, MAX_BUCKET_ROWS)
    return tuple(sorted(set(sizes)))
