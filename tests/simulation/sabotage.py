"""Faults put into the real scheduler, pools and caches on purpose, each of which must be caught.

Owns: the list. Each changes a class of the package while a test runs, and names the invariants
that may catch it.
May not know: the simulation.
Read next: `test_sabotage.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import pytest

from firsthand.engine.attempts import _Attempts
from firsthand.kvcache.blocks import BlockPool
from firsthand.kvcache.prefix import Chain, PrefixCache
from firsthand.kvcache.regions import RegionPool
from firsthand.memory.arena import Arena
from firsthand.request import FinishReason, TokenEvent
from firsthand.scheduling import running, scheduler, turns, waiting
from firsthand.scheduling.plan import Draw, SequenceSlice
from firsthand.scheduling.requests import Requests
from firsthand.scheduling.running import Running
from firsthand.scheduling.scheduler import Scheduler
from firsthand.scheduling.sequence import Sequence
from firsthand.scheduling.stopping import finish_after
from firsthand.scheduling.tables import Tables
from firsthand.scheduling.waiting import FairQueue, StaticQueue

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Sabotage:
    """`stride` 16 from `first` 15 on are the saturated seeds, where shares can be measured."""

    name: str
    caught_by: frozenset[str]
    apply: Callable[[Patch], None]
    first: int = 0
    stride: int = 1


def _around(owner: type, name: str, change: Callable[..., Any]) -> Callable[[Patch], None]:
    """`change(original, self, *arguments)` stands in place of a method."""

    def apply(patch: Patch) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def changed(*arguments: Any, **named: Any) -> Any:
            return change(original, *arguments, **named)

        patch.setattr(owner, name, changed)

    return apply


# ---- blocks ------------------------------------------------------------------------------------


def _free_all_but_the_last(original: Any, pool: BlockPool, block_ids: Iterable[int]) -> None:
    ids = tuple(block_ids)
    original(pool, ids[:-1] if len(ids) > 1 else ids)


def _free_twice(original: Any, pool: BlockPool, block_ids: Iterable[int]) -> None:
    ids = tuple(block_ids)
    original(pool, ids)
    pool._free += [one for one in ids[:1] if one in pool._free]


def _share_without_a_count(original: Any, pool: BlockPool, block_ids: Iterable[int]) -> None:
    ids = tuple(block_ids)
    original(pool, ids)
    for block_id in ids:
        pool._num_owners[block_id] = 1


def _take_but_keep_the_key(original: Any, pool: BlockPool) -> int:
    keys = dict(pool._block_of)
    taken: int = original(pool)
    pool._block_of.update(keys)
    return taken


def _allocate_one_that_is_in_use(
    original: Any, pool: BlockPool, count: int
) -> tuple[int, ...] | None:
    taken: tuple[int, ...] | None = original(pool, count)
    used = [one for one, owners in enumerate(pool._num_owners) if owners]
    return (used[0], *taken[1:]) if taken and len(used) > 7 else taken


def _a_block_too_few(original: Any, tables: Tables, num_tokens: int) -> int:
    return max(1, num_tokens // tables._size)


# ---- prefixes and copies -----------------------------------------------------------------------


def _no_copies(original: Any, tables: Tables) -> tuple[object, ...]:
    original(tables)
    return ()


def _write_into_what_is_shared(original: Any, tables: Tables, *arguments: Any) -> bool:
    """The last block of a donor is taken as it is."""
    size = tables._size
    admitted: bool = original(tables, *arguments)
    sequence = arguments[0]
    if admitted and tables._copies and sequence.num_computed % size:
        copy = tables._copies.pop()
        assert tables._prefix is not None
        at = sequence.num_computed // size
        tables._prefix.pool.share((copy.source,))
        tables._memory.free((copy.target,))
        blocks = sequence.block_ids
        sequence.block_ids = (*blocks[:at], copy.source, *blocks[at + 1 :])
    return admitted


def _any_tokens(
    original: Any, cache: PrefixCache, entry: Any, chain: Chain, parent: int, tokens: Any
) -> bool:
    return bool(entry.parent == parent and entry.salt == chain.salt)


def _any_parent(
    original: Any, cache: PrefixCache, entry: Any, chain: Chain, parent: int, tokens: Any
) -> bool:
    return bool(entry.token_ids == tokens and entry.salt == chain.salt)


def _one_salt_for_all(original: Any, cache: PrefixCache, salt: str) -> Chain:
    chain: Chain = original(cache, "")
    return chain


def _publish_a_token_early(original: Any, tables: Tables, sequence: Sequence) -> None:
    sequence.num_computed += 1
    original(tables, sequence)
    sequence.num_computed -= 1


def _early_publishing(patch: Patch) -> None:
    """Whoever asks is told that a block is full one token before it is."""
    original = Tables.admit

    def admit(tables: Tables, sequence: Sequence, *arguments: Any) -> bool:
        admitted = original(tables, sequence, *arguments)
        if admitted and sequence.chain is not None and tables._size > 1:
            sequence.publish_at -= 1
        return admitted

    patch.setattr(Tables, "admit", admit)


# ---- sequences ---------------------------------------------------------------------------------


def _evict_and_lose_a_token(original: Any, run: Running, sequence: Sequence) -> None:
    original(run, sequence)
    if len(sequence.known) > sequence.num_prompt_tokens:
        sequence.known.pop()


def _evict_and_forget_what_was_lost(original: Any, run: Running, sequence: Sequence) -> None:
    original(run, sequence)
    sequence.num_lost = 0


def _forget_evictions(original: Any, run: Running, sequence: Sequence) -> None:
    original(run, sequence)
    sequence.num_preemptions = 0


def _position_from_the_slot(original: Any, sequence: Sequence, num_tokens: int) -> SequenceSlice:
    piece: SequenceSlice = original(sequence, num_tokens)
    if piece.draw is None or len(piece.block_ids) < 2:
        return piece
    size = sequence.capacity // len(piece.block_ids)
    draw = piece.draw._replace(position=piece.block_ids[-1] * size + piece.draw.position % size)
    return piece._replace(draw=draw)


def _seed_of_the_first(original: Any, sequence: Sequence, num_tokens: int) -> SequenceSlice:
    piece: SequenceSlice = original(sequence, num_tokens)
    draw = piece.draw
    return piece._replace(draw=draw and draw._replace(seed=sequence.request.seed))


def _history_of_the_prompt(original: Any, sequence: Sequence, num_tokens: int) -> SequenceSlice:
    piece: SequenceSlice = original(sequence, num_tokens)
    draw: Draw | None = piece.draw
    if draw is None:
        return piece
    history = tuple(draw.history)[: sequence.num_prompt_tokens]
    return piece._replace(draw=draw._replace(history=history))


def _another_index(original: Any, machine: Scheduler, sequence: Sequence, *rest: Any) -> TokenEvent:
    event: TokenEvent = original(machine, sequence, *rest)
    return event._replace(index=(event.index + 1) % sequence.request.n)


def _drop_the_last_token(original: Any, machine: Scheduler, *rest: Any) -> TokenEvent:
    event: TokenEvent = original(machine, *rest)
    return event._replace(token_id=None) if event.finish is not None else event


def _an_event_twice(original: Any, machine: Scheduler, *rest: Any) -> list[TokenEvent]:
    events: list[TokenEvent] = original(machine, *rest)
    return events + events[-1:]


def _events_in_another_order(original: Any, machine: Scheduler, *rest: Any) -> list[TokenEvent]:
    events: list[TokenEvent] = original(machine, *rest)
    return events[::-1]


def _one_token_more(patch: Patch) -> None:
    def later(rules: Any, *rest: Any) -> Any:
        return finish_after(replace(rules, max_tokens=rules.max_tokens + 1), *rest)

    patch.setattr(scheduler, "finish_after", later)


def _keep_what_is_aborted(
    original: Any, machine: Scheduler, sequence: Sequence, reason: FinishReason, *rest: Any
) -> TokenEvent:
    if reason is not FinishReason.CANCELLED or not sequence.is_running:
        event: TokenEvent = original(machine, sequence, reason, *rest)
        return event
    end = machine._end
    vars(machine)["_end"] = lambda *_, **__: None
    try:
        event = original(machine, sequence, reason, *rest)
    finally:
        vars(machine)["_end"] = end
    return event


def _fail_and_keep_the_blocks(
    original: Any, tables: Tables, sequence: Sequence, **how: Any
) -> None:
    if how.get("failed"):
        sequence.block_ids = sequence.block_ids[:-1]
    original(tables, sequence, **how)


def _fail_all_in_the_step(original: Any, attempts: Any, slices: Any, fault: Exception) -> None:
    attempts._fail(slices, fault)


def _forget_followers(original: Any, requests: Requests, leader: Sequence) -> list[Sequence]:
    released: list[Sequence] = original(requests, leader)
    return released[:-1] if len(released) > 1 else released


# ---- turns and limits --------------------------------------------------------------------------


def _budget_and_one(original: Any, machine: Scheduler, *rest: Any) -> Any:
    limits = machine._limits
    machine._limits = replace(limits, max_step_tokens=limits.max_step_tokens + 1)
    try:
        return original(machine, *rest)
    finally:
        machine._limits = limits


def _ageing_off(patch: Patch) -> None:
    for module in (turns, waiting):
        patch.setattr(module, "level", lambda class_index, waited_s, ageing_s: class_index)


def _shares_off(patch: Patch) -> None:
    patch.setattr(scheduler, "new_credits", lambda credits, *rest: [0.0] * len(credits))


def _lowest_class_first(patch: Patch) -> None:
    patch.setattr(
        turns, "next_turn", lambda asked, *_: max(range(len(asked)), key=lambda i: asked[i].level)
    )


def _tenants_alike(patch: Patch) -> None:
    patch.setattr(waiting._Tenant, "count", lambda tenant, step: 0)


def _evicted_go_last(original: Any, where: Any, sequence: Sequence, step: int) -> None:
    started = sequence.started
    sequence.started = False
    original(where, sequence, step)
    sequence.started = started


def _oldest_gives_up(patch: Patch) -> None:
    patch.setattr(running, "victim_order", lambda class_index, admitted: (class_index, -admitted))


def _join_any_batch(original: Any, queue: StaticQueue, num_running: int) -> None:
    queue._choose()


def _no_head(original: Any, queue: FairQueue, now_s: float, skip: Any) -> list[Sequence]:
    """Who is sixth in the queue is never asked: it stands still for one of them."""
    heads: list[Sequence] = original(queue, now_s, skip)
    return [one for one in heads if one.sequence_id % 7 != 6]


def _room_for_one_only(original: Any, run: Running, sequence: Sequence) -> bool:
    return not run.sequences and bool(original(run, sequence))


def _regions_that_stay_behind(patch: Patch) -> None:
    original = Arena.__init__

    def built(arena: Arena, num_units: int, **named: Any) -> None:
        original(arena, num_units, **(named | {"move": lambda *_: None}))

    patch.setattr(Arena, "__init__", built)


def _region_too_short(original: Any, pool: RegionPool, count: int) -> Any:
    return original(pool, max(1, count // 2))


def _late(original: Any, requests: Requests, now_s: float) -> list[Sequence]:
    return []


# Where a fault is to be looked for: shares and tenants in saturated seeds; a wrong parent shows
# where one tenant's digests collide and a block was evicted between, as few seeds bring about.
SATURATED = (15, 16)
SEEDS = {
    "shares are ignored": SATURATED,
    "tenants are ignored": SATURATED,
    "a block's parent is not looked at": (570, 1),
}


def _table(*rows: tuple[str, str, Callable[[Patch], None]]) -> tuple[Sabotage, ...]:
    return tuple(
        Sabotage(name, frozenset(by.split()), apply, *SEEDS.get(name, (0, 1)))
        for name, by, apply in rows
    )


SABOTAGES = _table(
    ("a freed block is not returned", "I1", _around(BlockPool, "free", _free_all_but_the_last)),
    ("a block is freed twice", "I1 I3 I4", _around(BlockPool, "free", _free_twice)),
    ("a share is not counted", "I1 I3 I4", _around(BlockPool, "share", _share_without_a_count)),
    (
        "a reused block keeps its key",
        "I1 I3 I4",
        _around(BlockPool, "_take", _take_but_keep_the_key),
    ),
    (
        "a block is given out twice",
        "I1 I3 I4",
        _around(BlockPool, "allocate", _allocate_one_that_is_in_use),
    ),
    ("a table is one block short", "I1 I3 I4", _around(Tables, "num_blocks", _a_block_too_few)),
    ("copies are not made", "I4", _around(Tables, "take_copies", _no_copies)),
    ("copy on write is skipped", "I2 I4", _around(Tables, "admit", _write_into_what_is_shared)),
    ("a hash counts as equality", "I4", _around(PrefixCache, "_is", _any_tokens)),
    ("a block's parent is not looked at", "I4", _around(PrefixCache, "_is", _any_parent)),
    ("salts are ignored", "I4", _around(PrefixCache, "chain", _one_salt_for_all)),
    (
        "a block is published a token early",
        "I2 I3 I4",
        _around(Tables, "publish", _publish_a_token_early),
    ),
    (
        "an evicted sequence loses a token",
        "I3 I4",
        _around(Running, "evict", _evict_and_lose_a_token),
    ),
    (
        "tokens computed again are not counted",
        "I5",
        _around(Running, "evict", _evict_and_forget_what_was_lost),
    ),
    ("evictions are not counted", "I5 I8", _around(Running, "evict", _forget_evictions)),
    (
        "a position comes from the slot",
        "I4",
        _around(Sequence, "next_slice", _position_from_the_slot),
    ),
    ("all of a request have one seed", "I4", _around(Sequence, "next_slice", _seed_of_the_first)),
    (
        "penalties see the prompt only",
        "I4",
        _around(Sequence, "next_slice", _history_of_the_prompt),
    ),
    ("the index is mixed up", "I4", _around(Scheduler, "_draw", _another_index)),
    ("the last token is dropped", "I4 I5", _around(Scheduler, "_draw", _drop_the_last_token)),
    ("an event comes twice", "I3", _around(Scheduler, "commit", _an_event_twice)),
    (
        "events come in another order",
        "I3 I4",
        _around(Scheduler, "commit", _events_in_another_order),
    ),
    ("one token more than asked", "I3 I1", _one_token_more),
    ("an aborted sequence runs on", "I3", _around(Scheduler, "_finish", _keep_what_is_aborted)),
    (
        "a failed sequence keeps a block",
        "I1",
        _around(Tables, "release", _fail_and_keep_the_blocks),
    ),
    (
        "a step that fails ends all in it",
        "I3",
        _around(_Attempts, "_halve", _fail_all_in_the_step),
    ),
    (
        "a follower is forgotten",
        "I1 I3 I5",
        _around(Requests, "release_followers", _forget_followers),
    ),
    ("a deadline is ignored", "I3 I5", _around(Requests, "expired", _late)),
    ("the budget is off by one", "I9", _around(Scheduler, "_fill", _budget_and_one)),
    ("nobody ages", "I6", _ageing_off),
    ("shares are ignored", "I7", _shares_off),
    ("the lowest class goes first", "I6 I7", _lowest_class_first),
    ("tenants are ignored", "I7", _tenants_alike),
    ("the evicted go to the end", "I3 I6 I7", _around(waiting._Class, "add", _evicted_go_last)),
    ("the oldest gives up its blocks", "I7", _oldest_gives_up),
    ("a static batch is joined", "I7", _around(StaticQueue, "begin_step", _join_any_batch)),
    ("some are never asked", "I6 I7 I10", _around(FairQueue, "heads", _no_head)),
    ("one runs at a time", "I6 I7", _around(Running, "admit", _room_for_one_only)),
    ("a region moves without its content", "I4", _regions_that_stay_behind),
    ("a region is too short", "I1 I3 I4", _around(RegionPool, "allocate", _region_too_short)),
)
