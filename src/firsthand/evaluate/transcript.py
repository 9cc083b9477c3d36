"""What an engine did to some requests, to the bit: every logit that it drew from, every token.

Owns: the run of requests through the engine's own parts, on this thread, and the comparison of
two such runs.
May not know: what is varied between two runs, and why they should be equal.
Read next: `parity.py`, which varies.

The parts are those that serve: scheduler, runner, executor, store, sampler. Only the sampler's
call is watched on its way: there a row of logits has a name, (seed, position), whatever else is
in the step. The seeds of the requests compared must therefore differ.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.engine.guessing.speculation import Speculation
from firsthand.engine.runner import ModelRunner
from firsthand.engine.sampler import Masks, Sampled
from firsthand.generation.assembly import sampler_of
from firsthand.generation.loading import LoadedModel
from firsthand.generation.sharing import build_scheduler
from firsthand.kvcache.regions import RegionPool
from firsthand.memory.arena import ArenaFacts
from firsthand.request import MAX_SEED, Request, TokenEvent
from firsthand.scheduling.plan import Draw
from firsthand.scheduling.policy import Policy
from firsthand.values import dataclass

Row = NDArray[np.float32]


class Token(NamedTuple):
    """One token as it reached the caller."""

    token_id: int
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...]


class Difference(NamedTuple):
    """The first place where two runs differ. `position` is the token's, in its sequence."""

    request: str
    position: int
    what: str
    expected: str
    got: str

    def __str__(self) -> str:
        return (
            f"{self.request}, position {self.position}: {self.what} is {self.got} instead of "
            f"{self.expected}"
        )


@dataclass(slots=True)
class Transcript:
    """Rows of logits by (seed, position), and the tokens of each sequence by its seed. A sequence
    that did not end as it should has its cause in `faults`."""

    rows: dict[tuple[int, int], Row] = field(default_factory=dict)
    tokens: dict[int, list[Token]] = field(default_factory=lambda: defaultdict(list))
    faults: dict[int, str] = field(default_factory=dict)

    def add(self, other: Transcript) -> None:
        self.rows |= other.rows
        self.tokens |= other.tokens
        self.faults |= other.faults


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run did, so that it can be told whether it did what it was to prove."""

    transcript: Transcript
    difference: Difference | None
    num_logits: int
    num_preempted: int
    num_copies: int
    num_hit_tokens: int
    most_together: int
    most_pieces: int  # steps with a prompt's tokens but no draw, in all
    num_guesses: int
    num_accepted: int
    arena: ArenaFacts | None


class Witness:
    """A sampler that notes the rows it is given, or compares them with a run before; those that
    count."""

    def __init__(
        self,
        loaded: LoadedModel,
        names: dict[int, str],
        known: Transcript | None,
        counts: Callable[[Draw], bool],
    ):
        self._counts = counts
        self._sample = sampler_of(loaded.executor)
        self._names = names
        self._known = known
        self.rows: dict[tuple[int, int], Row] = {}
        self.num_logits = 0
        self.difference: Difference | None = None

    def __call__(self, logits: Row, draws: Sequence[Draw], masks: Masks | None = None) -> Sampled:
        for row, draw in zip(logits, draws, strict=True):
            if self._counts(draw):
                self._see(row, draw)
        return self._sample(logits, draws, masks)

    def _see(self, row: Row, draw: Draw) -> None:
        key = (draw.seed, draw.position)
        self.num_logits += row.size
        if self._known is None:
            self.rows[key] = row.copy()
        elif self.difference is None:
            name = self._names[draw.seed]
            self.difference = differing_row(name, draw.position, self._known.rows.get(key), row)


def play(
    loaded: LoadedModel,
    rounds: Sequence[Sequence[Request]],
    known: Transcript | None = None,
    *,
    steps_between: int | None = None,
    policy: Policy | None = None,
    speculation: Speculation | None = None,
    counts: Callable[[Draw], bool] = lambda draw: True,
) -> Ran:
    """Run the requests to their ends in one engine, round after round: the next one begins when
    all have ended, or after so many steps. With `known`, stop at the first difference from it.
    `counts` tells rows that are compared from those behind a wrong guess of the `speculation`.

    Nothing else may run on `loaded`; raises InvalidRequest then, and what `Scheduler.check` does.
    """
    requests = {request.request_id: request for one in rounds for request in one}
    names = {seed_of(r, i): r.request_id for r in requests.values() for i in range(r.n)}
    witness = Witness(loaded, names, known, counts)
    scheduler = build_scheduler(loaded, time.perf_counter, policy)
    runner = ModelRunner(
        loaded.executor,
        loaded.store,
        loaded.limits.vocab_size,
        witness,
        time.perf_counter,
        speculation=speculation,
    )
    steps: list[StepFacts] = []
    engine = Engine(scheduler, runner, time.perf_counter, steps.append)
    said = Transcript(rows=witness.rows)
    claim = loaded.claim()
    try:
        for number, one in enumerate(rounds):
            if witness.difference is not None:
                break
            for request in one:
                engine.add(request)
            is_last = number == len(rounds) - 1
            left = None if is_last else steps_between
            while engine.has_work and left != 0 and witness.difference is None:
                _note(engine.step(), requests, said)
                left = None if left is None else left - 1
    finally:
        claim.release()
    memory = scheduler.memory
    return Ran(
        transcript=said,
        difference=witness.difference or _differing_tokens(said, known, names),
        num_logits=witness.num_logits,
        num_preempted=sum(step.planned.num_preempted for step in steps),
        num_copies=sum(step.planned.num_copies for step in steps),
        num_hit_tokens=sum(step.planned.num_prefix_hit_tokens for step in steps),
        most_together=max((step.num_sequences for step in steps), default=0),
        most_pieces=sum(step.num_sequences - step.num_drawn for step in steps),
        num_guesses=sum(one.num_guesses for step in steps for one in step.guesses),
        num_accepted=sum(one.num_accepted for step in steps for one in step.guesses),
        arena=memory.facts() if isinstance(memory, RegionPool) else None,
    )


def seed_of(request: Request, index: int = 0) -> int:
    """The seed of one of its sequences: its name in a transcript."""
    return (request.seed + index) % (MAX_SEED + 1)


def _note(events: Sequence[TokenEvent], requests: dict[str, Request], said: Transcript) -> None:
    for event in events:
        request = requests[event.request_id]
        seed = seed_of(request, event.index)
        if event.token_id is not None:
            said.tokens[seed].append(Token(event.token_id, event.logprob, event.top_logprobs))
        if event.finish is not None and len(said.tokens[seed]) % request.stop.max_tokens:
            said.faults[seed] = str(event.finish.cause or event.finish.reason.value)


def differing_row(name: str, position: int, known: Row | None, row: Row) -> Difference | None:
    """By their bits: a NaN is equal to itself, and −0 is not 0."""
    if known is None:
        return Difference(name, position, "the row", "none", "drawn from")
    apart = np.flatnonzero(known.view(np.uint32) != row.view(np.uint32))
    if not apart.size:
        return None
    at = int(apart[0])
    what = f"logit {at} ({apart.size} of {row.size} differ)"
    return Difference(name, position, what, _float(known[at]), _float(row[at]))


def _differing_tokens(
    said: Transcript, known: Transcript | None, names: dict[int, str]
) -> Difference | None:
    """Tokens and logprobs of each sequence, also of one that was run more than once."""
    for seed, fault in said.faults.items():
        return Difference(names[seed], len(said.tokens[seed]), "its end", "max_tokens", fault)
    if known is None:
        return None
    for seed, name in names.items():
        found = differing_tokens(name, known.tokens[seed], said.tokens[seed])
        if found is not None:
            return found
    return None


def differing_tokens(
    name: str, known: Sequence[Token], tokens: Sequence[Token]
) -> Difference | None:
    """`tokens` must be `known`, once or several times over; `position` counts new tokens here."""
    if not known or not tokens or len(tokens) % len(known):
        return Difference(name, len(tokens), "the number of tokens", f"{len(known)}", "another")
    for at, token in enumerate(tokens):
        expected = known[at % len(known)]
        if token != expected:
            values = zip(Token._fields, map(str, expected), map(str, token), strict=True)
            what, one, other = next(found for found in values if found[1] != found[2])
            return Difference(name, at % len(known), what, one, other)
    return None


def _float(value: np.float32) -> str:
    return f"{value!s} (0x{int(value.view(np.uint32)):08x})"
