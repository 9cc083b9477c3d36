"""Which bucket a step goes to, and what is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsthand.compute.buckets import (
    DEFAULT_BUCKETS,
    MAX_BUCKET_ROWS,
    MAX_BUCKETS,
    MIN_FILL,
    Buckets,
    BucketUse,
    check_buckets,
)
from firsthand.errors import InvalidRequest


@pytest.mark.parametrize(
    ("num_rows", "bucket"),
    [(128, 128), (127, 128), (64, 128), (129, 256), (512, 512), (513, 1024), (1024, 1024)],
)
def test_s15_a_step_goes_to_the_nearest_bucket_that_holds_it(num_rows: int, bucket: int) -> None:
    assert Buckets(DEFAULT_BUCKETS).choose(num_rows) == bucket


@pytest.mark.parametrize("num_rows", [1, 63, 1025, 10**6])
def test_s15_a_step_too_large_or_nearly_empty_runs_as_it_is(num_rows: int) -> None:
    assert Buckets(DEFAULT_BUCKETS).choose(num_rows) is None


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8),
    st.lists(st.integers(1, 400), max_size=30),
)
def test_every_step_is_counted_once(sizes: list[int], steps: list[int]) -> None:
    buckets = Buckets(check_buckets(sizes))
    for num_rows in steps:
        bucket = buckets.choose(num_rows)
        if bucket is not None:
            assert num_rows <= bucket <= MIN_FILL * num_rows
            assert not [size for size in sizes if num_rows <= size < bucket]
        buckets.count(num_rows)
    facts = buckets.facts()
    assert facts.num_hits + facts.num_misses == len(steps)
    fitting = [(n, buckets.choose(n)) for n in steps]
    padded = sum(bucket - n for n, bucket in fitting if bucket is not None)
    assert sum(bucket.num_padded_rows for bucket in facts.buckets) == padded


def test_the_facts_are_plain_values() -> None:
    buckets = Buckets((8, 16))
    assert buckets.facts().hit_rate is None
    for num_rows in (7, 8, 20, 1):
        buckets.count(num_rows)
    buckets.add_compile_ms(8, 1.5)
    buckets.add_compile_ms(8, 2.0)
    facts = buckets.facts()
    assert facts.buckets == (BucketUse(8, 2, 1, 3.5), BucketUse(16, 0, 0, 0.0))
    assert facts.to_dict() == {
        "hit_rate": 0.5,
        "num_hits": 2,
        "num_misses": 2,
        "buckets": [
            {"num_rows": 8, "num_hits": 2, "num_padded_rows": 1, "compile_ms": 3.5},
            {"num_rows": 16, "num_hits": 0, "num_padded_rows": 0, "compile_ms": 0.0},
        ],
    }


def test_buckets_are_sorted_and_each_is_there_once() -> None:
    assert check_buckets(None) == (128, 256, 512, 1024)
    assert check_buckets([64, 8, 64]) == (8, 64)


@pytest.mark.parametrize(
    "sizes", [[], "128", 128, [0], [-1], [True], [1.5], ["8"], [MAX_BUCKET_ROWS + 1], {8: 8}]
)
def test_buckets_that_are_none_are_refused(sizes: object) -> None:
    with pytest.raises(InvalidRequest, match="compile_buckets"):
        check_buckets(sizes)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="compile_buckets"):
        check_buckets(list(range(1, MAX_BUCKETS + 2)))
