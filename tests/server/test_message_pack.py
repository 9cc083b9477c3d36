"""Items are counted as the decoder would make them, and claims are not believed."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.server.message_pack import check_items


def has_more_items(content: bytes, limit: int) -> bool:
    try:
        check_items(content, limit)
    except ValueError as error:
        return "items" in str(error)
    return False


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.integers(0, 4).map(lambda power: msgspec.msgpack.Ext(5, b"x" * 2**power))
    | st.just(msgspec.msgpack.Ext(5, b"x" * 70_000))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20)
    ),
    max_leaves=60,
)


def num_items(value: Any) -> int:
    match value:
        case dict():
            return 1 + sum(1 + num_items(inner) for inner in value.values())
        case list():
            return 1 + sum(num_items(inner) for inner in value)
        case _:
            return 1


@settings(deadline=None, max_examples=200)
@given(values)
def test_the_count_is_that_of_the_values(value: Any) -> None:
    content, count = msgspec.msgpack.encode(value), num_items(value)
    assert not has_more_items(content, count)
    assert has_more_items(content, count - 1)


@pytest.mark.parametrize("size", [15, 16, 70_000])
def test_long_lists_and_maps(size: int) -> None:
    for value, count in (([None] * size, size + 1), (dict.fromkeys(range(size)), 2 * size + 1)):
        content = msgspec.msgpack.encode(value)
        assert not has_more_items(content, count)
        assert has_more_items(content, count - 1)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_end(content: bytes) -> None:
    has_more_items(content, 10)


def test_what_is_claimed_counts_and_much_is_found_quickly() -> None:
    assert has_more_items(b"\xdd\xff\xff\xff\xff", 1_000_000)
    assert has_more_items(b"\xdf\xff\xff\xff\xff" + b"\x90" * 50, 1_000_000)
    started_s = time.process_time()
    assert has_more_items(b"\x9f" * 8_000_000, 1_000_000)
    assert not has_more_items(b"\xdb\x00\x70\x00\x00" + b"\x90" * 0x700000, 1_000_000)
    assert time.process_time() - started_s < 5.0


@pytest.mark.parametrize(
    "content",
    [
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xde\x00\x02\xa1a\x01\xd9\x01a\x02",  # in two forms
        b"\x81\xa1b\x92\x80\x82\xa1a\x82\xa1x\x01\xa1y\x02\xa1a\x02",  # inside
        b"\x82\x01\x01\x01\x02",
    ],
)
def test_a_key_that_stands_there_twice_is_seen(content: bytes) -> None:
    msgspec.msgpack.decode(content)
    with pytest.raises(ValueError, match="twice"):
        check_items(content, 100)


def test_equal_keys_of_different_maps_are_no_fault() -> None:
    same = {"a": {"a": [{"a": 1}, {"a": "a"}]}, "b": "a", "": ["a", "a"]}
    check_items(msgspec.msgpack.encode([same, same]), 100)
