"""How much one key may take: requests and tokens per minute, and at once.

Owns: the buckets of every key, and what a refusal says about coming back.
May not know: clocks (time is an argument), other callers' load, what a token costs.
Read next: `gate.py`.

A bucket holds a minute's worth and fills evenly. Tokens are taken for the longest answer that was
asked for, or for what is expected of one without a limit. At the end that is settled by the true
figure: what was not used is given back, what was used beyond it is taken, and a bucket that this
leaves in debt lets nobody through until it has filled again. So a key never gets more than its
rate, but for answers without a limit that were open when it ran out.
"""

from __future__ import annotations

from dataclasses import field

from firsthand.server.guard.call import Caller, Quota
from firsthand.server.guard.refusal import Refused
from firsthand.values import dataclass

MINUTE_S = 60.0


@dataclass(slots=True)
class Bucket:
    """`level` is what may be taken now. `per_minute` 0: no limit."""

    per_minute: int
    level: float
    at_s: float

    def fill(self, now: float) -> None:
        gained = max(0.0, now - self.at_s) * self.per_minute / MINUTE_S
        self.level = min(float(self.per_minute), self.level + gained)
        self.at_s = max(self.at_s, now)

    def missing_s(self, amount: int) -> float:
        """Until `amount` is there; 0 when it is."""
        if self.per_minute == 0 or self.level >= amount:
            return 0.0
        return (amount - self.level) * MINUTE_S / self.per_minute

    def take(self, amount: float) -> None:
        if self.per_minute:
            self.level = min(float(self.per_minute), self.level - amount)


@dataclass(slots=True)
class _Account:
    quota: Quota
    requests: Bucket
    tokens: Bucket
    num_open: int = 0


@dataclass(slots=True)
class Rates:
    """One account per key; there are no more than keys."""

    _accounts: dict[str, _Account] = field(default_factory=dict)

    def take(self, caller: Caller, num_tokens: int, now: float, num_requests: int = 1) -> None:
        """Count requests in, all or nothing. Raises Refused with 429."""
        account = self._account(caller, now)
        quota = caller.quota
        if quota.max_concurrent and account.num_open + num_requests > quota.max_concurrent:
            message = (
                f"this key has {account.num_open} requests open, its limit is "
                f"{quota.max_concurrent}"
            )
            raise Refused(429, message, "queue_share_exceeded", retry_after_s=1.0)
        if quota.tokens_per_minute and num_tokens > quota.tokens_per_minute:
            message = (
                f"the request may take {num_tokens} tokens, this key's limit is "
                f"{quota.tokens_per_minute} a minute; lower max_tokens"
            )
            raise Refused(429, message, "rate_limit_exceeded")
        for bucket, amount, what in (
            (account.requests, num_requests, "requests"),
            (account.tokens, num_tokens, "tokens"),
        ):
            wait_s = bucket.missing_s(amount)
            if wait_s > 0:
                message = f"this key's limit is {bucket.per_minute} {what} a minute"
                raise Refused(429, message, "rate_limit_exceeded", retry_after_s=wait_s)
        account.requests.take(num_requests)
        account.tokens.take(num_tokens)
        account.num_open += num_requests

    def give_back(self, caller: Caller, num_tokens: int, now: float, num_requests: int = 0) -> None:
        """A request has ended; `num_tokens` of those taken were not used; below 0: more were. With
        `num_requests` 1 it does not even count as one."""
        account = self._account(caller, now)
        account.num_open -= 1
        account.tokens.take(-num_tokens)
        account.requests.take(-num_requests)

    def headers(self, caller: Caller, now: float) -> list[tuple[str, str]]:
        """OpenAI's names, for the limits that this key has."""
        account = self._account(caller, now)
        found = []
        for bucket, what in ((account.requests, "requests"), (account.tokens, "tokens")):
            if bucket.per_minute:
                reset_s = (bucket.per_minute - bucket.level) * MINUTE_S / bucket.per_minute
                found += [
                    (f"x-ratelimit-limit-{what}", str(bucket.per_minute)),
                    (f"x-ratelimit-remaining-{what}", str(max(0, int(bucket.level)))),
                    (f"x-ratelimit-reset-{what}", f"{max(0.0, reset_s):.3f}s"),
                ]
        return found

    def forget(self, key_ids: frozenset[str]) -> None:
        """Drop the accounts of keys that are gone and have nothing open."""
        for key_id in list(self._accounts):
            if key_id not in key_ids and self._accounts[key_id].num_open == 0:
                del self._accounts[key_id]

    def _account(self, caller: Caller, now: float) -> _Account:
        """The account, filled up to now. A changed quota starts with full buckets."""
        account = self._accounts.get(caller.tenant)
        quota = caller.quota
        if account is None or account.quota != quota:
            num_open = 0 if account is None else account.num_open
            requests = Bucket(quota.requests_per_minute, float(quota.requests_per_minute), now)
            tokens = Bucket(quota.tokens_per_minute, float(quota.tokens_per_minute), now)
            account = self._accounts[caller.tenant] = _Account(quota, requests, tokens, num_open)
        account.requests.fill(now)
        account.tokens.fill(now)
        return account
