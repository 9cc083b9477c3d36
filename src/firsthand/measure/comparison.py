"""Ours beside the plain way: batching, the cache's memory, shared prefixes.

Owns: the three workloads, the pairs, and what of each side is told.
May not know: how a batch is chosen, where a block lies.
Read next: `generation/variants.py`, the two sides; `throughput.py`, one side alone.

Both sides have the same weights in the same process, and run alternately: each pair gives a ratio,
so that a machine that slows down for a while slows both. One pair warms up.

`batching`: requests of spread lengths; the plain way fills a batch and lets nobody join before
all of it has ended. `store`: so little memory that not all fit; the plain way gives each sequence
one region for its whole length, and moves regions when no hole is large enough. `prefix`: the time
to the first token of a second request that begins like the first; the plain way computes it again.
"""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from firsthand.checks import check_choice, check_integer
from firsthand.engine.facts import StepFacts
from firsthand.errors import ContextLengthExceeded
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.generation.loading import LoadedModel, load_model
from firsthand.generation.variants import check_plain, contiguous_store, varied
from firsthand.measure.latency import Spread, prompt_of, spread_of
from firsthand.measure.throughput import MAX_CONCURRENCY
from firsthand.values import dataclass

COMPARISONS = ("batching", "store", "prefix")
LONGEST_PROMPT = 64
REQUESTS_PER_PLACE = 3
OWN_TOKENS = 16  # of a prompt, after the shared prefix
Job = tuple[list[int], int]  # prompt, new tokens


@dataclass(frozen=True, slots=True)
class Side:
    """One way, measured. `facts` are counts of its last run."""

    name: str
    value: Spread
    facts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`advantage` is the median over the pairs: above 1, ours is that many times better."""

    name: str
    unit: str
    plain: Side
    ours: Side
    advantage: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Run:
    value: float
    facts: dict[str, float]


def compare(
    model: str,
    options: LoadOptions,
    *,
    concurrency: int = 8,
    output_tokens: int = 128,
    prefix_tokens: int = 512,
    repeats: int = 3,
    only: Collection[str] = (),
    begin: Callable[[str], None] = lambda name: None,
) -> Iterator[Comparison]:
    """Load once, then each comparison in turn; `begin` hears of it first.

    Raises what a load raises, InvalidRequest and ContextLengthExceeded.
    """
    for name in only:
        check_choice("only", name, COMPARISONS)
    check_integer("concurrency", concurrency, 2, MAX_CONCURRENCY // 2)
    check_integer("output_tokens", output_tokens, 8)
    check_integer("prefix_tokens", prefix_tokens, 16)
    check_integer("repeats", repeats, 1)
    check_plain(options)
    loaded = load_model(model, replace(options, max_sequences=2 * concurrency))
    longest = max(LONGEST_PROMPT + output_tokens, prefix_tokens + OWN_TOKENS + 1)
    if longest > loaded.limits.context_length:
        raise ContextLengthExceeded(
            "output_tokens" if longest > prefix_tokens + OWN_TOKENS + 1 else "prefix_tokens",
            f"{longest} tokens exceed the context of {loaded.limits.context_length}",
        )
    jobs = spread_jobs(concurrency, output_tokens, loaded.limits.vocab_size)
    for name in COMPARISONS:
        if only and name not in only:
            continue
        begin(name)
        if name == "batching":
            yield _batching(loaded, jobs, concurrency, repeats)
        elif name == "store":
            yield _store(loaded, jobs, concurrency, repeats)
        else:
            yield _prefix(loaded, prefix_tokens, repeats)


def spread_jobs(concurrency: int, output_tokens: int, vocab_size: int) -> list[Job]:
    """Prompts of 16 to 64 tokens, answers of an eighth of `output_tokens` up to all of them; no
    two prompts begin alike."""
    jobs = []
    for number in range(REQUESTS_PER_PLACE * concurrency):
        length = 16 + 37 * number % (LONGEST_PROMPT - 15)
        new_tokens = max(1, output_tokens * (1 + 5 * number % 8) // 8)
        jobs.append(
            ([(at + number) % vocab_size for at in prompt_of(length, vocab_size)], new_tokens)
        )
    return jobs


def _batching(
    loaded: LoadedModel, jobs: Sequence[Job], concurrency: int, repeats: int
) -> Comparison:
    static = varied(loaded, max_sequences=concurrency, scheduler="static")
    fair = varied(loaded, max_sequences=concurrency)
    sides = {"static": lambda: _served(static, jobs), "continuous": lambda: _served(fair, jobs)}
    return _paired("batching", "output tokens/s", sides, repeats)


def _store(loaded: LoadedModel, jobs: Sequence[Job], concurrency: int, repeats: int) -> Comparison:
    size = loaded.budget.block_size
    most = max(len(prompt) + new for prompt, new in jobs)
    num_blocks = max(1, concurrency // 2) * -(-most // size)
    store = contiguous_store(loaded, num_blocks, most)
    regions = varied(loaded, num_blocks=num_blocks, store=store)
    paged = varied(loaded, num_blocks=num_blocks)
    sides = {"contiguous": lambda: _served(regions, jobs), "paged": lambda: _served(paged, jobs)}
    return _paired("store", "output tokens/s", sides, repeats)


def _prefix(loaded: LoadedModel, prefix_tokens: int, repeats: int) -> Comparison:
    without, sharing = varied(loaded), varied(loaded, prefix_cache=True)
    sides = {
        "none": lambda: _second_request(without, prefix_tokens),
        "shared prefix": lambda: _second_request(sharing, prefix_tokens),
    }
    return _paired("prefix", "first token, ms", sides, repeats, less_is_better=True)


def _paired(
    name: str,
    unit: str,
    sides: dict[str, Callable[[], Run]],
    repeats: int,
    *,
    less_is_better: bool = False,
) -> Comparison:
    pairs = [[run() for run in sides.values()] for _ in range(repeats + 1)][1:]
    plain, ours = (
        Side(side, spread_of([run.value for run in runs]), runs[-1].facts)
        for side, runs in zip(sides, zip(*pairs, strict=True), strict=True)
    )
    ratios = [other.value / one.value for one, other in pairs]
    if less_is_better:
        ratios = [1 / ratio for ratio in ratios]
    return Comparison(name, unit, plain, ours, statistics.median(ratios))


def _served(loaded: LoadedModel, jobs: Sequence[Job]) -> Run:
    """Tokens of all by the time from the first step to the last one. They are handed over while the
    engine is held after a step of another request, so that every run plans the same steps."""
    steps: list[StepFacts] = []
    fragmentation = 0.0
    held, all_there = threading.Event(), threading.Event()
    with LLM(loaded) as llm:

        def listen(step: StepFacts) -> None:
            nonlocal fragmentation
            if not all_there.is_set():
                held.set()
                all_there.wait()
                return
            steps.append(step)
            arena = llm.arena()
            if arena is not None and step.num_waiting:
                fragmentation = max(fragmentation, arena.fragmentation)

        with llm.listening(listen):
            first = llm.stream(jobs[0][0][:1], max_tokens=1, temperature=0, ignore_end=True)
            try:
                held.wait()
                streams = [
                    llm.stream(prompt, max_tokens=new, temperature=0, ignore_end=True)
                    for prompt, new in jobs
                ]
            finally:
                all_there.set()
            started_s = time.perf_counter()
            for stream in (first, *streams):
                stream.completion()
            seconds = time.perf_counter() - started_s
        arena = llm.arena()
    facts: dict[str, float] = {
        "steps": len(steps),
        "at_once_mean": sum(step.num_sequences for step in steps) / len(steps),
        "at_once_most": max(step.num_sequences for step in steps),
        "preemptions": sum(step.planned.num_preempted for step in steps),
    }
    if arena is not None:
        facts |= {
            "compactions": arena.num_compactions,
            "moved_tokens": arena.num_moved,
            "compaction_ms": arena.compaction_ms,
            "fragmentation_most": fragmentation,
        }
    return Run(sum(new for _, new in jobs) / seconds, facts)


def _second_request(loaded: LoadedModel, prefix_tokens: int) -> Run:
    vocab_size = loaded.limits.vocab_size
    prompts = [
        [*prompt_of(prefix_tokens, vocab_size), *((97 * at + own) % vocab_size for at in range(16))]
        for own in (1, 2)
    ]
    steps: list[StepFacts] = []
    salt = secrets.token_hex(8)
    with LLM(loaded) as llm:
        for prompt in prompts:
            steps.clear()
            with llm.listening(steps.append):
                stream = llm.stream(
                    prompt, max_tokens=1, temperature=0, ignore_end=True, cache_salt=salt
                )
                ttft_ms = stream.completion().report.ttft_ms
    hits = sum(step.planned.num_prefix_hit_tokens for step in steps)
    return Run(ttft_ms, {"prompt_tokens": len(prompts[1]), "found_tokens": hits})
