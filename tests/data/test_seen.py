"""Keys that have been there, in memory and beyond."""

from contextlib import closing

import pytest

from firsthand.data.seen import Seen


@pytest.mark.parametrize("max_in_memory", [1, 100, 10_000])
def test_each_key_is_new_once(max_in_memory: int) -> None:
    with closing(Seen(max_in_memory)) as seen:
        for key in range(1000):
            assert seen.add(str(key))
            assert not seen.add(str(key // 2))
