"""Making a failing workload small: drop requests, then everything about them, then halve numbers.

Owns: the order of the reductions, and the bound on how many are tried.
May not know: what fails; that is a function it is given.
Read next: `runs.py`, which gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from firsthand.scheduling.policy import Policy
from tests.simulation.workload import Ask, Setup, Workload

MAX_TRIES = 1000


class Shrinker:
    """`fails` tells whether a workload still fails in the same way. `num_tries`: its calls."""

    def __init__(self, fails: Callable[[Workload], bool], max_tries: int = MAX_TRIES) -> None:
        self._fails = fails
        self._max_tries = max_tries
        self.num_tries = 0

    def shrink(self, workload: Workload) -> Workload:
        """The smallest that was found; `workload` itself fails, which is not tried again."""
        while self.num_tries < self._max_tries:
            smaller = self._simpler(self._fewer(workload))
            if smaller == workload:
                break
            workload = smaller
        return workload

    def _fewer(self, workload: Workload) -> Workload:
        """Without a half of the requests, a quarter, … at last without single ones."""
        length = max(1, len(workload.asks) // 2)
        while True:
            start = 0
            while start < len(workload.asks):
                asks = workload.asks[:start] + workload.asks[start + length :]
                smaller = replace(workload, asks=asks)
                if self._still_fails(smaller):
                    workload = smaller
                else:
                    start += length
            if length == 1:
                return workload
            length //= 2

    def _simpler(self, workload: Workload) -> Workload:
        """Each field of the machine and of each request: its default, else half of its number."""
        for setup in _simpler_setups(workload.setup):
            smaller = replace(workload, setup=setup)
            if self._still_fails(smaller):
                workload = smaller
        for index in range(len(workload.asks)):
            for name in [one.name for one in fields(Ask) if one.name != "mark"]:
                workload = self._simpler_ask(workload, index, name)
        return workload

    def _simpler_ask(self, workload: Workload, index: int, name: str) -> Workload:
        for value in _smaller_values(getattr(workload.asks[index], name), getattr(Ask(0), name)):
            ask = _with(workload.asks[index], name, value)
            asks = (*workload.asks[:index], ask, *workload.asks[index + 1 :])
            smaller = replace(workload, asks=asks)
            if self._still_fails(smaller):
                return smaller
        return workload

    def _still_fails(self, workload: Workload) -> bool:
        if self.num_tries >= self._max_tries:
            return False
        self.num_tries += 1
        return self._fails(workload)


def _simpler_setups(setup: Setup) -> Iterator[Setup]:
    plain = Setup()
    for name in ("policy", "faults", "jumps", "weak_digest", "step_ms", "token_ms"):
        if getattr(setup, name) != getattr(plain, name):
            yield replace(setup, **{name: getattr(plain, name)})
    for one in fields(Policy):
        if getattr(setup.policy, one.name) != getattr(plain.policy, one.name):
            policy = replace(setup.policy, **{one.name: getattr(plain.policy, one.name)})
            yield replace(setup, policy=policy)


def _with(ask: Ask, name: str, value: Any) -> Ask:
    return replace(ask, **{name: value})


def _smaller_values(value: object, plain: object) -> Iterator[object]:
    """What may stand in place of `value`, the simplest first."""
    if value == plain:
        return
    yield plain
    if isinstance(value, int) and not isinstance(value, bool):
        if value > 1:
            yield value // 2
            yield value - 1
    elif isinstance(value, tuple) and len(value) > 1:
        yield value[:1]
        yield value[1:]
