"""What each of several models may take: memory by its plan, and its part of the cores.

Owns: both shares, and the refusal of what can never fit, with its numbers.
May not know: engines; which models are loaded at a time (`registry.py`).
Read next: `memory/budget.py` (the plan), `registry.py`.

A model's need is fixed before anything is loaded and does not depend on the company, so that its
context, and how many sequences it runs, are the same whoever else is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firsthand.compute.native.cores import available_threads
from firsthand.errors import CapacityExceeded
from firsthand.generation.loading import plan_model
from firsthand.generation.member import RegistryEntry, name_of
from firsthand.generation.service_values import ServiceOptions
from firsthand.memory.budget import Limit, mib, resolve_limit


def sharing_threads(entries: Sequence[RegistryEntry]) -> list[RegistryEntry]:
    """Models of the start are meant to work at once: where nobody says how many threads one has,
    they share the cores. The number changes no bit of an answer."""
    share = max(1, available_threads() // max(1, sum(one.at_start for one in entries)))
    shared = []
    for one in entries:
        load = one.service.load
        if load.executor == "native" and load.threads is None:
            service = replace(one.service, load=replace(load, threads=share))
            one = replace(one, service=service)
        shared.append(one)
    return shared


def limited(options: ServiceOptions, need_bytes: int) -> ServiceOptions:
    return replace(options, load=replace(options.load, memory_limit=need_bytes))


def needs_of(entries: Sequence[RegistryEntry], limit: Limit) -> list[int]:
    """The memory of each, in bytes, before anything is loaded.

    Raises CapacityExceeded for what can never fit, and what opening a checkpoint raises.
    """
    needs = [_need(one, limit) for one in entries]
    if limit.num_bytes is not None:
        _check_together(entries, needs, limit)
    return needs


def _need(entry: RegistryEntry, limit: Limit) -> int:
    """Its share, if it was given one; else what its plan says is enough beside others."""
    options, own = entry.service, entry.memory_limit
    whole: int | str = options.load.memory_limit if limit.num_bytes is None else limit.num_bytes
    if own is not None:
        given = resolve_limit(own, limit.num_bytes).num_bytes
        whole = own if given is None else given
    try:
        _, budget = plan_model(options.model, replace(options.load, memory_limit=whole))
    except CapacityExceeded as error:
        raise CapacityExceeded(f"{name_of(entry)}: {error}") from None
    return whole if isinstance(whole, int) and own is not None else budget.shared_bytes


def _check_together(entries: Sequence[RegistryEntry], needs: Sequence[int], limit: Limit) -> None:
    """Each model fits beside those that never leave, and those of the start fit together."""
    named = [(one, name_of(one), need) for one, need in zip(entries, needs, strict=True)]
    start = [(name, need) for one, name, need in named if one.at_start]
    for one, name, need in named:
        pinned = [(n, b) for other, n, b in named if other.pinned and other is not one]
        _check_sum(f"{name} and the pinned models", [(name, need), *pinned], limit)
    _check_sum("the models of the start", start, limit)


def _check_sum(what: str, parts: Sequence[tuple[str, int]], limit: Limit) -> None:
    total = sum(need for _, need in parts)
    if limit.num_bytes is not None and total > limit.num_bytes:
        each = ", ".join(f"{name} {mib(need)}" for name, need in parts)
        raise CapacityExceeded(
            f"{what} need {mib(total)} and the limit is {limit}: {each}. Load fewer at the start, "
            "give one less (max-model-len, max-num-seqs, its memory-limit), or raise memory-limit"
        )
