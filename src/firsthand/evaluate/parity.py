"""The promise, proven on this model and this machine: a request has the same bits whatever is
around it.

Owns: the properties, and for each the proof that what it is about did take place.
May not know: terminals; how any property is kept.
Read next: `transcript.py`, how two runs are compared; `workload.py`, the requests.
Seen in: `firsthand lab batch-bits`.

The reference is each request alone: a fresh scheduler, its prompt whole, nothing found in a cache.
Every property runs the same requests in another way and compares every logit that a token was drawn
from, the tokens and the log-probabilities, bit by bit. A way that did not happen (no eviction where
evictions are the point) proves nothing, and fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.checks import check_choice
from firsthand.compute.executor import OwnsStores
from firsthand.compute.fusion import RULES
from firsthand.compute.native.executor import NativeExecutor
from firsthand.engine.batching import flat_batch
from firsthand.engine.guessing.speculation import Speculation
from firsthand.errors import InvalidRequest
from firsthand.evaluate import workload
from firsthand.evaluate.facade import told
from firsthand.evaluate.foretold import Foretold
from firsthand.evaluate.transcript import (
    Difference,
    Ran,
    Transcript,
    differing_row,
    differing_tokens,
    play,
    seed_of,
)
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, Progress, load_model
from firsthand.generation.variants import check_plain, contiguous_store, varied
from firsthand.models import families
from firsthand.request import Request
from firsthand.scheduling.plan import SequenceSlice, StepPlan
from firsthand.scheduling.policy import Policy
from firsthand.values import dataclass

NATIVE_ONLY = ("threads", "fusion")  # what is varied is its own
AT_ONCE = len(workload.SIZES)
MAX_LOGIT_ROWS = 96
THREADS = (1, 2, 3)
POISON = 0xFF  # as floats of either size: NaN
FEW_BLOCKS = 10  # of the 26 that the requests want together
MAX_GUESSES = 4  # per sequence and step
FEW_REGIONS = 11  # blocks, in regions: so few that some must be moved
EAGER = Policy(growth_tokens=0, max_recomputed=1.0)  # keeps no room for growth, so must evict

Install = Callable[[LoadedModel], LoadedModel]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is proven, and with what. `install` is put between every run and the engine."""

    loaded: LoadedModel
    native: NativeExecutor | None  # None: an executor that promises nothing
    requests: Sequence[Request]
    known: Transcript
    install: Install
    thorough: bool

    def varied(self, **changes: Any) -> LoadedModel:
        """As `generation.variants.varied`."""
        return self.install(varied(self.loaded, **changes))


@dataclass(frozen=True, slots=True)
class Part:
    """One way of running that a property compared. `problem`: it did not take place."""

    difference: Difference | None
    num_logits: int
    seen: str
    problem: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """One property. `num_logits` were compared; the first `difference` ends it."""

    name: str
    promise: str
    passed: bool
    seen: str
    num_logits: int
    ms: float
    difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        found = self.difference
        return asdict(self) | {"difference": None if found is None else found._asdict()}


Ask = Callable[[Subject], Iterator[Part]]


def load_for_proof(
    model: str | Path, options: LoadOptions, progress: Progress | None = None
) -> LoadedModel:
    """As `load_model`, sized for the requests. Raises InvalidRequest for what the proof itself
    varies."""
    check_plain(options)
    sized = replace(options, max_sequences=AT_ONCE, max_logit_rows=MAX_LOGIT_ROWS)
    loaded = load_model(model, sized, progress)
    least = workload.MAX_TOKENS + 1
    if loaded.limits.context_length < least or loaded.budget.num_blocks < 24:
        raise InvalidRequest("max_context", f"the proof needs {least} tokens, in 24 blocks or more")
    return loaded


def checked_names(only: Collection[str]) -> tuple[str, ...]:
    """Raises InvalidRequest for a name that is none of `PROPERTIES`."""
    for name in only:
        check_choice("only", name, tuple(PROPERTIES))
    return tuple(only)


def prove(
    loaded: LoadedModel,
    only: Collection[str] = (),
    *,
    thorough: bool = False,
    install: Install = lambda loaded: loaded,
) -> Iterator[Outcome]:
    """Each property in turn, the first one that fails as the last. `only` names some of
    `PROPERTIES`; `install` may put a fault in, to see that it is found.

    The promise is the native executor's. Another one is asked all that can be asked of it, and goes
    on after a difference: what holds is what is wanted to know."""
    executor, names = loaded.executor, checked_names(only)
    native = executor if isinstance(executor, NativeExecutor) else None
    left_out = () if native is not None else NATIVE_ONLY
    if isinstance(executor, OwnsStores):
        left_out = (*left_out, "store")
    for name in set(names).intersection(left_out):
        raise InvalidRequest("only", f"{name!r} cannot be asked of the {executor.name} executor")
    requests = workload.requests(loaded.limits.vocab_size, 4 if thorough else 1)
    subject = Subject(loaded, native, requests, Transcript(), install, thorough)
    for name, (promise, ask) in PROPERTIES.items():
        if name in left_out or (only and name not in (*only, "again")):
            continue
        outcome = _asked(name, promise, ask, subject)
        yield outcome
        if native is not None and not outcome.passed:
            return


def _asked(name: str, promise: str, ask: Ask, subject: Subject) -> Outcome:
    started_s = time.perf_counter()
    num_logits, seen = 0, ""
    failed: Part | None = None
    for part in ask(subject):
        num_logits += part.num_logits
        seen = part.seen
        if part.difference is not None or part.problem:
            failed = part
            break
    return Outcome(
        name,
        promise,
        failed is None,
        seen if failed is None or failed.difference is None else str(failed.difference),
        num_logits,
        (time.perf_counter() - started_s) * 1e3,
        None if failed is None else failed.difference,
    )


def alone(
    loaded: LoadedModel, requests: Sequence[Request], known: Transcript | None
) -> Iterator[Ran]:
    """Each request in an engine of its own."""
    for request in requests:
        yield play(loaded, [[request]], known)


# ---- the properties --------------------------------------------------------------------------


def _again(subject: Subject) -> Iterator[Part]:
    """Also fills in the reference."""
    loaded = subject.varied()
    for ran in alone(loaded, subject.requests, None):
        subject.known.add(ran.transcript)
        yield Part(ran.difference, 0, "")
    for ran in alone(loaded, subject.requests, subject.known):
        yield Part(ran.difference, ran.num_logits, "each request alone, twice")


def _company(subject: Subject) -> Iterator[Part]:
    loaded, requests = subject.varied(), subject.requests
    most = 0
    for rounds, steps in (
        ([requests], None),
        ([requests[::-1]], None),
        ([[request] for request in requests], 3),
    ):
        ran = play(loaded, rounds, subject.known, steps_between=steps)
        most = max(most, ran.most_together)
        seen = f"up to {most} at once: in order, in reverse, one after another"
        yield Part(ran.difference, ran.num_logits, seen, most < 2)


def _chunks(subject: Subject) -> Iterator[Part]:
    sizes = (1, 7, 13, 16, 33, 64) if subject.thorough else (13, 48)
    for size in sizes:
        loaded = subject.varied(max_step_tokens=size)
        ran = play(loaded, [subject.requests], subject.known)
        seen = f"steps of at most {', '.join(map(str, sizes))} tokens"
        yield Part(ran.difference, ran.num_logits, seen, not ran.most_pieces)


def _rows(subject: Subject) -> Iterator[Part]:
    """Every row of a prompt, not only the last: the executor is asked directly."""
    ids = subject.requests[-1].prompt_token_ids
    other = subject.requests[-2].prompt_token_ids[:17]
    loaded = subject.varied()
    per = -(-len(ids) // loaded.budget.block_size)
    own, others = tuple(range(per)), tuple(range(per, 2 * per))
    (whole,) = _rows_of(loaded, [[SequenceSlice(0, ids, 0, own, None)]])
    for size in (1, 13) if subject.thorough else (13,):
        pieces = [
            [
                SequenceSlice(1, other, 0, others, None),
                SequenceSlice(0, ids[start : start + size], start, own, None),
            ]
            for start in range(0, len(ids), size)
        ]
        rows = np.concatenate([step[len(other) :] for step in _rows_of(loaded, pieces)])
        found = [
            differing_row("a prompt", at, known, row)
            for at, (known, row) in enumerate(zip(whole, rows, strict=True))
        ]
        first = next((one for one in found if one is not None), None)
        yield Part(first, rows.size, f"all {len(ids)} rows of a prompt, in pieces beside another")


def _rows_of(
    loaded: LoadedModel, steps: Sequence[Sequence[SequenceSlice]]
) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """The logits of every row of each step."""
    claim = loaded.claim()
    try:
        for slices in steps:
            batch = flat_batch(StepPlan(tuple(slices)), loaded.store)
            every = np.arange(batch.num_tokens, dtype=np.int32)
            yield loaded.executor.run(replace(batch, logit_rows=every), loaded.store).copy()
    finally:
        claim.release()


def _prefix(subject: Subject) -> Iterator[Part]:
    rounds = [subject.requests, subject.requests]
    for loaded in (
        subject.varied(prefix_cache=True),
        subject.varied(prefix_cache=True, num_blocks=24, max_step_tokens=32),
    ):
        ran = play(loaded, rounds, subject.known)
        seen = f"{ran.num_hit_tokens} tokens were found computed"
        yield Part(ran.difference, ran.num_logits, seen, not ran.num_hit_tokens)


def _preemption(subject: Subject) -> Iterator[Part]:
    count = FEW_BLOCKS
    for prefix in (False, True):
        loaded = subject.varied(num_blocks=count, prefix_cache=prefix)
        for block_id in range(count):
            loaded.store.fill_block(block_id, POISON)
        ran = play(loaded, [subject.requests], subject.known, policy=EAGER)
        seen = f"{ran.num_preempted} evictions in {count} blocks, which were NaN before"
        yield Part(ran.difference, ran.num_logits, seen, not ran.num_preempted)


def _threads(subject: Subject) -> Iterator[Part]:
    assert subject.native is not None
    own = subject.native.threads
    counts = [count for count in THREADS if count != own]
    for count in counts:
        loaded = subject.varied(executor=_prepared(subject, threads=count))
        ran = play(loaded, [subject.requests], subject.known)
        yield Part(ran.difference, ran.num_logits, f"{own} threads, and {_words(counts)}")


def _fusion(subject: Subject) -> Iterator[Part]:
    loaded = subject.varied(executor=_prepared(subject, rules=False))
    ran = play(loaded, [subject.requests], subject.known)
    yield Part(ran.difference, ran.num_logits, f"without the plan's {len(RULES)} rules")


def _prepared(subject: Subject, **options: Any) -> NativeExecutor:
    loaded = subject.loaded
    assert subject.native is not None
    executor = subject.native.beside(**options)
    rows = loaded.max_logit_rows
    executor.prepare(families.program(loaded.spec), loaded.limits.max_step_tokens, rows)
    return executor


def _choices(subject: Subject) -> Iterator[Part]:
    """n = 4, alone and beside everything else; each is the one that its seed gives alone. The
    prompt ends within a block, which the four share until they write into it."""
    size = subject.loaded.budget.block_size
    whole = [
        one
        for one in subject.requests
        if one.sampling.temperature > 0 and len(one.prompt_token_ids) % size > 1
    ][-1]
    n = workload.NUM_CHOICES
    singles = [
        replace(whole, request_id=f"{whole.request_id}, index {i}", seed=seed_of(whole, i))
        for i in range(1, n)
    ]
    for ran in alone(subject.varied(), singles, None):
        subject.known.add(ran.transcript)
    others = [one for one in subject.requests if one is not whole]
    group = replace(whole, n=n)
    ran = play(subject.varied(prefix_cache=True), [[group], [*others, group]], subject.known)
    seen = f"n = {n}, {ran.num_copies} blocks copied before they were written"
    yield Part(ran.difference, ran.num_logits, seen, not ran.num_copies)


def _store(subject: Subject) -> Iterator[Part]:
    """Regions so scarce that the arena has to move some of them."""
    store = contiguous_store(subject.loaded, FEW_REGIONS, workload.MAX_TOKENS)
    rounds = [[one] for one in subject.requests]
    scarce = subject.varied(store=store, num_blocks=FEW_REGIONS)
    ran = play(scarce, rounds, subject.known, steps_between=1)
    moves = 0 if ran.arena is None else ran.arena.num_compactions
    yield Part(ran.difference, ran.num_logits, f"contiguous, {moves} compactions", not moves)


def _static(subject: Subject) -> Iterator[Part]:
    ran = play(subject.varied(scheduler="static"), [subject.requests], subject.known)
    yield Part(ran.difference, ran.num_logits, "batches that nobody joins")


def _streamed(subject: Subject) -> Iterator[Part]:
    num_tokens = 0
    loaded = subject.varied(prefix_cache=True)
    for request, tokens in told(loaded, subject.requests):
        known = subject.known.tokens[seed_of(request)]
        num_tokens += len(tokens)
        found = differing_tokens(request.request_id, known, tokens)
        yield Part(found, 0, f"{num_tokens} tokens and logprobs, streamed or at once")


def _guesses(subject: Subject) -> Iterator[Part]:
    """By a guesser that is right and wrong in turns, so that both take place."""
    for size in (1, MAX_GUESSES):
        loaded = subject.varied()
        limits = replace(loaded.limits, max_guesses=size, max_step_guesses=size * AT_ONCE)
        loaded = replace(loaded, limits=limits)
        guesser = Foretold(subject.known, loaded.limits.vocab_size)
        speculation = Speculation(guesser, None, time.perf_counter)
        ran = play(
            loaded,
            [subject.requests],
            subject.known,
            speculation=speculation,
            counts=guesser.is_true,
        )
        seen = f"{ran.num_accepted} of {ran.num_guesses} guessed tokens were right"
        problem = not 0 < ran.num_accepted < ran.num_guesses
        yield Part(ran.difference, ran.num_logits, seen, problem)


def _words(counts: Sequence[int]) -> str:
    return " and ".join(map(str, counts))


PROPERTIES: dict[str, tuple[str, Ask]] = {
    "again": ("the same in every run", _again),
    "company": ("alone = with any others", _company),
    "chunks": ("a prompt whole = in pieces", _chunks),
    "rows": ("every row of a prompt, whole = in pieces", _rows),
    "prefix": ("cache cold = warm", _prefix),
    "preemption": ("undisturbed = evicted and computed again", _preemption),
    "choices": ("n = 1 = many", _choices),
    "threads": ("any number of threads", _threads),
    "fusion": ("plan before fusion = after", _fusion),
    "store": ("paged = contiguous", _store),
    "static": ("continuous batching = static", _static),
    "guesses": ("plain decoding = with guessed tokens", _guesses),
    "streamed": ("streamed = at once", _streamed),
}
