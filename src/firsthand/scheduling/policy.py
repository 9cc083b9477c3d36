"""Whose turn it is: pure functions over numbers, and the numbers that an operator may set.

Owns: the rules of fairness and of patience that can be said in numbers, each with its bound. (How
long a large request is passed by: `turns.py`.)
May not know: sequences, queues, blocks, clocks. Waiting times come in as arguments.
Read next: `waiting.py`, which keeps the queue that these functions order.
Seen in: `firsthand lab starvation`.

Three classes: urgent 0, normal 1, background 2. The rules, the first that speaks decides:

1. *Ageing.* For each `ageing_s` of waiting a request rises by one class. What has waited for
   `longest_wait_s` of its class is overdue: it goes before everything, in order of arrival, and
   nobody is admitted past it. From then on only those overdue before it, and what runs already,
   are ahead of it: first in line, it starts at the latest when all that runs has ended.
2. *Shares.* A class that has had less than its share of the tokens while it had something waiting
   is owed the difference (its credit), and goes first. Nobody can be owed more than one step's
   tokens. What a class does not use is lent to the others. A class that is owed takes it back:
   one sequence per step, of a lower class that has more than its share, is evicted for it, as
   long as evictions have been cheap.
3. *Class.* The higher one first; in one class the earlier arrival.

Inside a class the tenant that was served the fewest tokens is next. A tenant that comes new, or
comes back, starts with the lowest count among those present: absence saves nothing up.
"""

from __future__ import annotations

from collections.abc import Sequence

from firsthand.checks import check_integer, check_number
from firsthand.request import Priority
from firsthand.values import dataclass

CLASSES = (Priority.URGENT, Priority.NORMAL, Priority.BACKGROUND)
OVERDUE = -1


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator may set. Raises InvalidRequest on a value outside its range.

    `shares` are weights of the classes: of those that want something, each is guaranteed its
    weight's part of the tokens computed. `ageing_s` is the wait that lifts by one class.
    A sequence that finds no room may be passed by `max_passed` others of its class or a lower one;
    then room is kept for it; for an evicted one it is kept at once, so that it has its place again
    before new ones come. `lookahead` bounds how many such are looked at per step.

    A sequence is admitted when there is room for what it has and for `growth_tokens` new tokens of
    everybody; more would leave memory idle, less would make evictions common. Should recomputed
    tokens exceed `max_recomputed` of the useful ones, then only if everybody's whole length fits.
    After `max_preemptions` a sequence gets its whole length when it returns, and is left alone.
    """

    shares: tuple[int, int, int] = (8, 4, 1)
    ageing_s: float = 10.0
    max_passed: int = 16
    lookahead: int = 8
    growth_tokens: int = 64
    max_preemptions: int = 3
    max_recomputed: float = 0.05

    def __post_init__(self) -> None:
        for share in self.shares:
            check_integer("shares", share, 1, 1000)
        check_number("ageing_s", self.ageing_s, 0.0, 1e6, low_open=True)
        check_integer("max_passed", self.max_passed, 0, 1_000_000)
        check_integer("lookahead", self.lookahead, 1, 1024)
        check_integer("growth_tokens", self.growth_tokens, 0, 1_000_000)
        check_integer("max_preemptions", self.max_preemptions, 0, 1024)
        check_number("max_recomputed", self.max_recomputed, 0.0, 1.0)


def class_index(priority: Priority) -> int:
    return CLASSES.index(priority)


def longest_wait_s(class_index: int, ageing_s: float) -> float:
    """After so long a request is overdue."""
    return (class_index + 1) * ageing_s


def level(class_index: int, waited_s: float, ageing_s: float) -> int:
    """The class that a request has risen to by waiting; OVERDUE when it has waited longest."""
    if waited_s >= longest_wait_s(class_index, ageing_s):
        return OVERDUE
    return class_index - int(max(waited_s, 0.0) // ageing_s)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the rules look at, of a sequence that would like to be next in its class.

    `arrival` orders the arrivals; two are never equal.
    """

    class_index: int
    level: int
    arrival: int


def next_turn(turns: Sequence[Turn], credits: Sequence[float], shares: Sequence[int]) -> int:
    """The index in `turns` (at least one) of who is next, by the rules above."""

    def order(index: int) -> tuple[int, float, int, int]:
        turn = turns[index]
        credit = credits[turn.class_index]
        if turn.level == OVERDUE:
            return (0, 0.0, 0, turn.arrival)
        if credit > 0:
            # Classes that wait alike are owed alike, but for the last bits of a sum.
            lag = round(credit / shares[turn.class_index], 6)
            return (1, -lag, turn.level, turn.arrival)
        return (2, 0.0, turn.level, turn.arrival)

    return min(range(len(turns)), key=order)


def new_credits(
    credits: Sequence[float],
    served: Sequence[int],
    wants: Sequence[bool],
    shares: Sequence[int],
    bound: int,
) -> list[float]:
    """The credits after a step: what a class should have had, less what it was `served` (tokens).

    `wants` tells which classes have something left that could run. Only those can be owed; the
    others start again from zero, so that an idle class saves nothing up.
    """
    present = [tokens > 0 or want for tokens, want in zip(served, wants, strict=True)]
    whole = sum(share for share, here in zip(shares, present, strict=True) if here)
    total = sum(served)
    after = []
    for index, credit in enumerate(credits):
        if not wants[index]:
            after.append(0.0)
            continue
        owed = credit + total * shares[index] / whole - served[index]
        after.append(min(max(owed, -float(bound)), float(bound)))
    return after


def borrowers(served: Sequence[int], wants: Sequence[bool], shares: Sequence[int]) -> list[bool]:
    """The classes that were served more than their share of a step, so live on what is lent."""
    present = [tokens > 0 or want for tokens, want in zip(served, wants, strict=True)]
    whole = sum(share for share, here in zip(shares, present, strict=True) if here)
    return [
        tokens * whole > share * sum(served) for tokens, share in zip(served, shares, strict=True)
    ]


def victim_order(class_index: int, admitted: int) -> tuple[int, int]:
    """Who gives up its blocks first has the greatest: the lowest class, in it the youngest."""
    return (class_index, admitted)


def expected_length(num_known: int, longest: int, growth_tokens: int | None) -> int:
    """The tokens that room is kept for; `growth_tokens` None: as many as there can ever be."""
    return longest if growth_tokens is None else min(num_known + growth_tokens, longest)
