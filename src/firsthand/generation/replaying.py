"""A request once more, exactly: run alone on an engine of its own, and compared.

Owns: how far it is run, and what counts as equal.
May not know: who kept it, where; what made its first answer (`kept_requests.py`).
Read next: `assembly.py` (the engine).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from firsthand.generation.assembly import assemble
from firsthand.generation.loading import LoadedModel
from firsthand.request import Request
from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens of one sequence; log-probabilities where they were asked for."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a sequence went another way; None: it does not go that far."""

    index: int
    position: int
    what: str
    recorded: float | int | None
    replayed: float | int | None


def replay(loaded: LoadedModel, request: Request, recorded: Sequence[Drawn]) -> list[Drawn]:
    """Run it alone, as far as what was recorded of it. Raises what the engine raises."""
    longest = max((len(one.token_ids) for one in recorded), default=0)
    if longest and request.generates:
        num_tokens = min(longest, request.stop.max_tokens)
        rules = replace(
            request.stop, max_tokens=num_tokens, min_tokens=min(request.stop.min_tokens, num_tokens)
        )
        request = replace(request, stop=rules)
    token_ids: list[list[int]] = [[] for _ in range(request.n)]
    logprobs: list[list[float]] = [[] for _ in range(request.n)]
    claim = loaded.claim()
    try:
        engine = assemble(loaded, time.perf_counter, lambda facts: None).engine
        engine.add(request)
        while engine.has_work:
            for event in engine.step():
                if event.token_id is not None:
                    token_ids[event.index].append(event.token_id)
                if event.logprob is not None:
                    logprobs[event.index].append(event.logprob)
    finally:
        claim.release()
    pairs = zip(token_ids, logprobs, strict=True)
    return [Drawn(tuple(ids), tuple(values)) for ids, values in pairs]


def first_difference(recorded: Sequence[Drawn], replayed: Sequence[Drawn]) -> Difference | None:
    """Token by token, then log-probability by log-probability; a replay may go on for longer."""
    for index, (known, seen) in enumerate(zip(recorded, replayed, strict=True)):
        for what, one, other in (
            ("token", known.token_ids, seen.token_ids),
            ("logprob", known.logprobs, seen.logprobs),
        ):
            for position, value in enumerate(one):
                found = other[position] if position < len(other) else None
                if found != value:
                    return Difference(index, position, what, value, found)
    return None
