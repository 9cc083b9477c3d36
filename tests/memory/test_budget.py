"""The budget's sums, what it refuses, and the text of a limit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.errors import CapacityExceeded, InvalidRequest
from firsthand.memory.budget import (
    MIN_CONTEXT,
    Budget,
    Fixed,
    Limit,
    Wish,
    kv_bytes_per_token,
    make_budget,
    read_bytes,
    resolve_limit,
    share_of,
)

MIB = 2**20
FIXED = Fixed(100 * MIB, 20 * MIB, 80 * MIB, estimated=False)
WISH = Wish(
    bytes_per_token=MIB // 16,  # a block of 16 tokens is 1 MiB
    block_size=16,
    context_length=1024,
    context_is_asked=False,
    max_sequences=4,
    sequences_are_asked=True,
)


def limit_of(mib: int | None) -> Limit:
    return Limit(None if mib is None else mib * MIB, "as given")


def test_the_cache_gets_what_is_left() -> None:
    budget = make_budget(limit_of(300), FIXED, WISH)
    assert (budget.num_blocks, budget.kv_bytes) == (100, 100 * MIB)
    assert (budget.context_length, budget.max_sequences) == (1024, 4)
    assert budget.rows() == [
        ("weights", 100 * MIB, pytest.approx(1 / 3)),
        ("scratch", 20 * MIB, pytest.approx(1 / 15)),
        ("process", 80 * MIB, pytest.approx(4 / 15)),
        ("KV cache", 100 * MIB, pytest.approx(1 / 3)),
        ("left", 0, 0.0),
        ("limit", 300 * MIB, 1.0),
    ]


def test_the_cache_is_no_larger_than_every_sequence_at_full_length() -> None:
    for limit in (limit_of(10_000), limit_of(None)):
        assert make_budget(limit, FIXED, WISH).num_blocks == 4 * 64
    roomy = make_budget(limit_of(None), FIXED, replace(WISH, headroom=1.2))
    assert roomy.num_blocks == 4 * 77  # 1228.8 tokens: room, not length
    assert roomy.context_length == 1024
    assert roomy.rows()[-1] == ("sum", 200 * MIB + 308 * MIB, 1.0)


def test_s25_sequences_follow_from_free_memory() -> None:
    wish = replace(WISH, context_length=8192, max_sequences=16, sequences_are_asked=False)
    for limit_mib, expected in ((264, 1), (330, 2), (200 + 64 * 5, 5), (10**6, 16), (None, 16)):
        assert make_budget(limit_of(limit_mib), FIXED, wish).max_sequences == expected
    asked = replace(wish, max_sequences=9, sequences_are_asked=True)
    assert make_budget(limit_of(264), FIXED, asked).max_sequences == 9


def test_a_context_that_nobody_asked_for_shrinks_to_what_fits() -> None:
    budget = make_budget(limit_of(220), FIXED, WISH)
    assert (budget.context_length, budget.num_blocks) == (320, 20)
    assert make_budget(limit_of(216), FIXED, WISH).context_length == MIN_CONTEXT
    with pytest.raises(CapacityExceeded, match=r"keys and values of 256 tokens 16\.0 MiB"):
        make_budget(limit_of(215), FIXED, WISH)


def test_what_was_asked_for_is_refused_with_the_sum_and_with_what_would_fit() -> None:
    with pytest.raises(CapacityExceeded) as refused:
        make_budget(limit_of(250), FIXED, replace(WISH, context_is_asked=True))
    assert str(refused.value) == (
        "264.0 MiB are needed and the limit is 250.0 MiB (as given): weights 100.0 MiB, scratch "
        "20.0 MiB, the process 80.0 MiB, keys and values of 1024 tokens 64.0 MiB. "
        "memory_limit=264MiB would hold it, max_context=800 would fit"
    )
    assert make_budget(
        limit_of(250), FIXED, replace(WISH, context_is_asked=True, context_length=800)
    )
    assert make_budget(limit_of(264), FIXED, replace(WISH, context_is_asked=True))


def test_weights_beyond_the_limit() -> None:
    fixed = replace(FIXED, weights_bytes=9000 * MIB, estimated=True)
    limit = resolve_limit("80%", 5000 * MIB)
    with pytest.raises(CapacityExceeded, match="estimated before the load") as refused:
        make_budget(limit, fixed, WISH)
    assert "4,000.0 MiB (80% of the 5,000.0 MiB that are free)" in str(refused.value)
    assert "max_context" not in str(refused.value)


@settings(deadline=None, max_examples=200)
@given(
    limit_mib=st.integers(1, 4000) | st.none(),
    context=st.integers(1, 5000),
    asked=st.booleans(),
    sequences=st.integers(1, 40),
    sequences_asked=st.booleans(),
    block_size=st.sampled_from([1, 16, 5000]),
    headroom=st.sampled_from([1.0, 1.2]),
)
def test_a_budget_is_kept_or_refused(
    limit_mib: int | None,
    context: int,
    asked: bool,
    sequences: int,
    sequences_asked: bool,
    block_size: int,
    headroom: float,
) -> None:
    wish = Wish(23040, block_size, context, asked, sequences, sequences_asked, headroom)
    try:
        budget: Budget = make_budget(limit_of(limit_mib), FIXED, wish)
    except CapacityExceeded as refused:
        assert limit_mib is not None
        enough = int(str(refused).split("memory_limit=")[1].split("MiB")[0])
        assert enough > limit_mib
        make_budget(limit_of(enough), FIXED, wish)  # the advice is true
        return
    if limit_mib is not None:
        assert budget.num_bytes <= limit_mib * MIB
    assert 1 <= budget.context_length <= context
    assert budget.context_length == context or not asked
    assert budget.num_blocks * block_size >= budget.context_length
    assert 1 <= budget.max_sequences <= sequences
    assert budget.max_sequences == sequences or not sequences_asked
    assert json.loads(json.dumps(budget.to_dict()))["kv_bytes"] == budget.kv_bytes


def test_bytes_of_a_token() -> None:
    """30 layers, 3 heads of 64: 22.5 KiB in float16; int8 has two scales per head."""
    assert kv_bytes_per_token(30, 3, 64, "float16") == 23040
    assert kv_bytes_per_token(30, 3, 64, "float32") == 46080
    assert kv_bytes_per_token(30, 3, 64, "int8") == 30 * 3 * 2 * (64 + 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2**31),
        ("2G", 2**31),
        ("2GB", 2 * 10**9),
        ("2g", 2 * 10**9),
        ("1.5 MiB", 3 * 2**19),
        ("512K", 2**19),
        ("1k", 1000),
        ("1048576", 2**20),
        ("3B", 3),
        (4096, 4096),
    ],
)
def test_a_limit_in_bytes(text: str | int, expected: int) -> None:
    assert read_bytes(text) == expected
    assert share_of(text) is None
    assert resolve_limit(text, 1) == Limit(expected, "as given")


@pytest.mark.parametrize("text", ["1%", "80%", "100%"])
def test_a_limit_as_a_share_of_what_is_free(text: str) -> None:
    assert resolve_limit(text, 1000 * MIB).num_bytes == 10 * MIB * int(text[:-1])
    unknown = resolve_limit(text, None)
    assert unknown.num_bytes is None
    assert str(unknown) == "no limit"


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "0",
            "0%",
            "101%",
            "-1",
            "1.5",
            "GiB",
            "2 gib",
            "2XB",
            "1e9",
            "８GiB",
            "80.5%",
            "nan",
        ),
        *(True, 0, -5, 1.5, None, "9" * 400, "9" * 400 + "%"),
    ],
)
def test_any_other_limit_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequest, match="memory_limit") as refused:
        share_of(value)  # type: ignore[arg-type]
    assert len(str(refused.value)) < 300
