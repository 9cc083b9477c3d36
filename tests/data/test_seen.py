"""Keys that have been there, in memory and beyond."""

from contextlib import closing

import pytest

from firsthand.data.seen import Seen


@pytest.mark.parametrize("max_in_memory", [1, 100, 10_000])
def test_each_key_is_new_once(max_in_memory: int) -> None:
    with closing(Seen(max_in_memory)) as seen:
        for key in range(1000):
            assert seen.take([("key", str(key))])
            assert not seen.take([("key", str(key // 2))])


def test_who_is_refused_takes_nothing() -> None:
    with closing(Seen()) as seen:
        assert seen.take([("key", "1"), ("text", "a")])
        assert not seen.take([("key", "2"), ("text", "a")])
        assert seen.take([("key", "2"), ("text", "b")])
