"""Which tokens a window holds, and that each token is scored as often as the page says."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.evaluate.windows import windows

BOS = 99


@pytest.mark.parametrize(
    ("num_tokens", "bos_id", "expected"),
    [
        (0, None, []),
        (1, None, []),
        (2, None, [(0, 1)]),
        (4, None, [(0, 1, 2, 3)]),
        (5, None, [(0, 1, 2, 3)]),  # the fifth has nothing before it in its window
        (6, None, [(0, 1, 2, 3), (4, 5)]),
        (0, BOS, []),
        (1, BOS, [(BOS, 0)]),
        (3, BOS, [(BOS, 0, 1, 2)]),
        (4, BOS, [(BOS, 0, 1, 2), (BOS, 3)]),
    ],
)
def test_windows_of_four(
    num_tokens: int, bos_id: int | None, expected: list[tuple[int, ...]]
) -> None:
    assert windows(range(num_tokens), 4, bos_id) == expected


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(2, 20))
def test_with_bos_every_token_is_scored_once(num_tokens: int, size: int) -> None:
    cut = windows(range(num_tokens), size, BOS)
    assert all(2 <= len(window) <= size and window[0] == BOS for window in cut)
    assert list(chain.from_iterable(window[1:] for window in cut)) == list(range(num_tokens))


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(2, 20))
def test_without_bos_every_token_but_the_firsts_is_scored_once(num_tokens: int, size: int) -> None:
    cut = windows(range(num_tokens), size, None)
    scored = list(chain.from_iterable(window[1:] for window in cut))
    assert scored == [token for token in range(num_tokens) if token % size]
