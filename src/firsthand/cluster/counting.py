"""Many engines as one: sums of what each of them says.

Owns: how facts, limits, memory and pictures of several replicas become those of one engine.
May not know: links, requests, Ray.
Read next: `fleet.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from firsthand.engine.facts import StepFacts
from firsthand.generation.frames import EngineFacts
from firsthand.scheduling.facts import PlanFacts
from firsthand.scheduling.limits import MAX_SEQUENCES, MAX_STEP_TOKENS
from firsthand.scheduling.picture import Picture, Pictured, Runs


def whole_facts(facts: Sequence[EngineFacts]) -> EngineFacts | None:
    """Limits of one request are those of one engine; room is that of all."""
    if not facts:
        return None
    first = facts[0]
    num_sequences = min(sum(one.limits.max_sequences for one in facts), MAX_SEQUENCES)
    step_tokens = min(sum(one.limits.max_step_tokens for one in facts), MAX_STEP_TOKENS)
    memories = [one.memory for one in facts]
    return msgspec.structs.replace(
        first,
        limits=replace(
            first.limits,
            context_length=min(one.limits.context_length for one in facts),
            max_sequences=num_sequences,
            max_step_tokens=max(step_tokens, num_sequences),
        ),
        num_blocks=sum(one.num_blocks for one in facts),
        memory=replace(
            first.memory,
            weights_bytes=sum(one.weights_bytes for one in memories),
            scratch_bytes=sum(one.scratch_bytes for one in memories),
            kv_reserved_bytes=sum(one.kv_reserved_bytes for one in memories),
            peak_rss_bytes=sum(one.peak_rss_bytes for one in memories),
        ),
    )


def whole_step(
    facts: StepFacts, slot: int, others: Sequence[StepFacts], name: Callable[[str], str]
) -> StepFacts:
    """A step of one engine: what was done is its own, what waits, runs and is used is of all.
    `name` gives a request's id as its service knows it."""
    planned = facts.planned
    return replace(
        facts,
        replica=slot,
        request_ids=tuple(map(name, facts.request_ids)),
        num_waiting=facts.num_waiting + sum(one.num_waiting for one in others),
        num_running=facts.num_running + sum(one.num_running for one in others),
        num_used_blocks=facts.num_used_blocks + sum(one.num_used_blocks for one in others),
        num_cached_blocks=facts.num_cached_blocks + sum(one.num_cached_blocks for one in others),
        num_evicted_blocks=facts.num_evicted_blocks + sum(one.num_evicted_blocks for one in others),
        waiting_by_class=_added(
            [facts.waiting_by_class, *(one.waiting_by_class for one in others)]
        ),
        running_by_class=_added(
            [facts.running_by_class, *(one.running_by_class for one in others)]
        ),
        guesses=tuple(replace(one, request_id=name(one.request_id)) for one in facts.guesses),
        planned=_named(planned, name) if planned.admitted or planned.preempted else planned,
    )


def whole_picture(
    pictures: Sequence[tuple[Picture, int]], name: Callable[[str], str]
) -> Picture | None:
    """Each with its number of blocks, which are counted on from engine to engine."""
    if not pictures:
        return None
    running: list[Pictured] = []
    waiting: list[Pictured] = []
    cached: list[tuple[int, int]] = []
    base = 0
    for picture, num_blocks in pictures:
        for found, kind in ((running, picture.running), (waiting, picture.waiting)):
            for one in kind:
                shown = replace(
                    one, request_id=name(one.request_id), blocks=_from(one.blocks, base)
                )
                found.append(shown)
        cached += _from(picture.cached, base)
        base += num_blocks
    latest = max((picture for picture, _ in pictures), key=lambda one: one.at_s)
    return Picture(latest.at_s, tuple(running), tuple(waiting), tuple(cached), latest.shares)


def _from(runs: Runs, base: int) -> Runs:
    return tuple((first + base, count) for first, count in runs)


def _named(planned: PlanFacts, name: Callable[[str], str]) -> PlanFacts:
    return replace(
        planned,
        admitted=tuple(replace(one, request_id=name(one.request_id)) for one in planned.admitted),
        preempted=tuple(replace(one, request_id=name(one.request_id)) for one in planned.preempted),
    )


def _added(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*filter(None, counts), strict=True)))
