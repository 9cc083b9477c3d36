"""What a key may take: requests and tokens per minute, and at once.

Owns: proof of `rates.py`. Read next: `test_guard_gate.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firsthand.server.guard.call import Caller, Quota
from firsthand.server.guard.rates import Rates
from firsthand.server.guard.refusal import Refused


def test_requests_per_minute_fill_again() -> None:
    rates = Rates()
    caller = Caller("k", quota=Quota(requests_per_minute=60))
    for _ in range(60):
        rates.take(caller, 1, 0.0)
    with pytest.raises(Refused) as found:
        rates.take(caller, 1, 0.0)
    assert (found.value.status, found.value.code) == (429, "rate_limit_exceeded")
    assert found.value.retry_after_s == pytest.approx(1.0)
    rates.take(caller, 1, 1.0)
    rates.take(Caller("other"), 1, 0.0)


def test_tokens_that_were_not_used_come_back() -> None:
    rates = Rates()
    caller = Caller("k", quota=Quota(tokens_per_minute=100))
    rates.take(caller, 90, 0.0)
    with pytest.raises(Refused):
        rates.take(caller, 20, 0.0)
    rates.give_back(caller, 80, 0.0)
    rates.take(caller, 90, 0.0)
    remaining = dict(rates.headers(caller, 0.0))
    assert remaining["x-ratelimit-limit-tokens"] == "100"
    assert remaining["x-ratelimit-remaining-tokens"] == "0"
    with pytest.raises(Refused, match="lower max_tokens") as never:
        rates.take(caller, 101, 0.0)
    assert never.value.retry_after_s is None
    assert ("x-should-retry", "false") in never.value.headers()


def test_requests_at_once() -> None:
    rates = Rates()
    caller = Caller("k", quota=Quota(max_concurrent=2))
    rates.take(caller, 1, 0.0)
    rates.take(caller, 1, 0.0)
    with pytest.raises(Refused) as found:
        rates.take(caller, 1, 0.0)
    assert found.value.code == "queue_share_exceeded"
    rates.give_back(caller, 0, 0.0)
    rates.take(caller, 1, 0.0)


def test_a_refused_request_takes_nothing_from_the_rate() -> None:
    """Neither from a bucket whose turn comes first, nor when the queue refuses."""
    rates = Rates()
    caller = Caller("k", quota=Quota(requests_per_minute=2, tokens_per_minute=10))
    rates.take(caller, 10, 0.0)
    for _ in range(5):
        with pytest.raises(Refused):
            rates.take(caller, 10, 0.0)
    rates.take(caller, 10, 60.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "end"]), st.integers(1, 60), st.floats(0, 20)),
        max_size=80,
    )
)
@settings(deadline=None, max_examples=60)
def test_a_key_never_gets_more_than_its_rate(moves: list[tuple[str, int, float]]) -> None:
    """Whatever the order: what was used in a time t is at most a bucket and what flowed in."""
    rates, caller, now, used = Rates(), Caller("k", quota=Quota(tokens_per_minute=120)), 0.0, 0
    running: list[int] = []
    for verb, amount, passed in moves:
        now += passed
        if verb == "take":
            try:
                rates.take(caller, amount, now)
            except Refused:
                continue
            running.append(amount)
            used += amount
        elif running:
            taken = running.pop()
            unused = min(taken, amount)
            rates.give_back(caller, unused, now)
            used -= unused
        assert used <= 120 + now * 2 + 1e-6


def test_what_was_withdrawn_does_not_count_as_a_request() -> None:
    """A cascade asks its large model by the same request: it is not refused for the small one."""
    rates, caller = Rates(), Caller("k", quota=Quota(requests_per_minute=1, max_concurrent=1))
    for _ in range(3):
        rates.take(caller, 5, 0.0)
        rates.give_back(caller, 5, 0.0, num_requests=1)
    rates.take(caller, 5, 0.0)
    rates.give_back(caller, 0, 0.0)
    with pytest.raises(Refused):
        rates.take(caller, 5, 0.0)


def test_accounts_of_keys_that_are_gone_are_dropped() -> None:
    rates = Rates()
    for name in ("a", "b"):
        rates.take(Caller(name), 1, 0.0)
    rates.give_back(Caller("a"), 0, 0.0)
    rates.forget(frozenset())
    assert list(rates._accounts) == ["b"]
