"""What takes a canary back by itself, and what does not."""

from __future__ import annotations

import pytest

from firsthand.errors import InvalidRequest
from firsthand.server.canary import read_share
from firsthand.server.judging import MIN_ANSWERS, Arm, why_back


def arm(num: int, num_errors: int = 0, ttft_ms: float = 20.0, itl_ms: float = 10.0) -> Arm:
    found = Arm()
    for at in range(num):
        found.add(500 if at < num_errors else 200, ttft_ms + at % 3, itl_ms)
    return found


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (arm(1000), arm(2, 2), None),  # too few to tell
        (arm(1000), arm(3, 3), "errors"),
        (arm(1000), arm(300, 3), None),  # one in a hundred more is within the margin
        (arm(100, 50), arm(100, 51), None),  # as bad as the other: it is not the release
        (arm(1000), arm(MIN_ANSWERS - 1, ttft_ms=500), None),
        (arm(1000), arm(MIN_ANSWERS, ttft_ms=500), "latency"),
        (arm(1000), arm(MIN_ANSWERS, itl_ms=40), "latency"),
        (arm(1000), arm(MIN_ANSWERS, ttft_ms=24, itl_ms=12), None),
        (arm(1000, itl_ms=0.5), arm(1000, itl_ms=3), None),  # six times nothing
        (arm(0), arm(1000, itl_ms=500), None),  # nothing to compare with
    ],
)
def test_the_new_one_is_compared_with_the_old(old: Arm, new: Arm, reason: str | None) -> None:
    found = why_back({"old": old, "new": new})
    assert (found and found[0]) == reason


def test_wrong_requests_and_clients_that_left_say_nothing_of_a_release() -> None:
    found = Arm()
    for status in (400, 404, 422, 429, 499):
        found.add(status, None, None)
    assert (found.num_answers, found.num_errors) == (0, 0)


def test_a_share_is_read_in_both_forms_and_refused_by_name() -> None:
    assert (read_share("5%", "request"), read_share("0.25", "key")) == (0.05, 0.25)
    for share, by, field in (
        ("a lot", "key", "share"),
        ("0", "key", "share"),
        ("101%", "key", "share"),
        ("nan", "key", "share"),
        ("5%", "mood", "by"),
    ):
        with pytest.raises(InvalidRequest, match=field):
            read_share(share, by)
