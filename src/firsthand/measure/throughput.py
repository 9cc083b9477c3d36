"""How much comes out when many go on at once: the same prompt length for all, different prompts.

Owns: the workload, the rate, and the share of a step that is spent beside the kernels.
May not know: how a step is planned or computed.
Read next: `engine/facts.py`, what each step says about itself.
Seen in: `firsthand lab batch-knee`.

All requests are handed over at once, and the clock runs from the first hand-over to the last
token, prompts included. One run warms up and is left out. Outside the kernels is whatever of the
time between two steps' beginnings is neither in the executor nor in the sampler: plan, batch,
commit, events, and what the readers of the streams take from the engine's thread meanwhile.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from firsthand.checks import check_integer
from firsthand.engine.facts import StepFacts
from firsthand.generation.llm import LLM
from firsthand.measure.latency import Spread, check_sizes, format_of, spread_of, threads_of
from firsthand.values import dataclass

MAX_CONCURRENCY = 512  # a step has a token for each, and 512 at most


@dataclass(frozen=True, slots=True)
class KVBlocks:
    """Blocks of the cache: all that requests may have, and the most that were in use at once."""

    total: int
    peak: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """Many sequences, measured. `step_ms` are those of the steps in which every sequence got a
    token and none computed more than one; `num_preemptions` is the sum of all measured runs."""

    output_tokens_per_second: Spread
    step_ms: Spread
    outside_kernels_share: float
    num_preemptions: int
    kv_blocks: KVBlocks
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    format: str
    threads: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its time from the first request to the last token, and its steps."""

    seconds: float
    steps: Sequence[StepFacts]


def measure_throughput(
    llm: LLM,
    concurrency: int = 16,
    prompt_tokens: int = 64,
    output_tokens: int = 128,
    repeats: int = 5,
) -> Throughput:
    """`llm` must run `concurrency` sequences at once. Raises InvalidRequest or
    ContextLengthExceeded, naming the argument."""
    check_concurrency(concurrency)
    check_sizes(llm.loaded.spec.context_length, prompt_tokens, output_tokens, repeats)
    prompts = distinct_prompts(concurrency, prompt_tokens, llm.loaded.limits.vocab_size)
    runs = [run_once(llm, prompts, output_tokens) for _ in range(repeats + 1)][1:]
    steps = [step for run in runs for step in run.steps]
    full = [step for step in steps if step.slice_tokens == (1,) * concurrency]
    return Throughput(
        output_tokens_per_second=spread_of(
            [concurrency * output_tokens / run.seconds for run in runs]
        ),
        step_ms=spread_of([_step_ms(step) for step in full or steps]),
        outside_kernels_share=outside_kernels_share(runs),
        num_preemptions=sum(step.planned.num_preempted for step in steps),
        kv_blocks=KVBlocks(
            total=llm.loaded.budget.num_blocks,
            peak=max(step.num_used_blocks for step in steps),
        ),
        concurrency=concurrency,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        format=format_of(llm.loaded),
        threads=threads_of(llm.loaded),
    )


def check_concurrency(concurrency: int) -> None:
    check_integer("concurrency", concurrency, 1, MAX_CONCURRENCY)


def distinct_prompts(count: int, num_tokens: int, vocab_size: int) -> list[list[int]]:
    """Ids spread over the vocabulary, no two prompts with the same first token where that can be:
    nothing is found in the cache."""
    return [
        [(7919 * index + 13 + number) % vocab_size for index in range(num_tokens)]
        for number in range(count)
    ]


def run_once(llm: LLM, prompts: Sequence[Sequence[int]], output_tokens: int) -> Run:
    """With a salt of its own: nothing that an earlier run computed may be found."""
    salt = secrets.token_hex(8)
    steps: list[StepFacts] = []
    with llm.listening(steps.append):
        started_s = time.perf_counter()
        streams = [
            llm.stream(
                prompt, max_tokens=output_tokens, temperature=0, ignore_end=True, cache_salt=salt
            )
            for prompt in prompts
        ]
        for stream in streams:
            stream.completion()
        return Run(time.perf_counter() - started_s, steps)


def outside_kernels_share(runs: Sequence[Run]) -> float:
    """1 − (time in the executor and in the sampler) ÷ (time of the steps). A step's time goes to
    the beginning of the next one; that of a run's last step is what it knows of itself."""
    kernels_ms = wall_ms = 0.0
    for run in runs:
        kernels_ms += sum(step.forward_ms + step.sample_ms for step in run.steps)
        wall_ms += sum(
            (after.started_s - step.started_s) * 1e3 for step, after in pairwise(run.steps)
        )
        wall_ms += _step_ms(run.steps[-1])
    return 1 - kernels_ms / wall_ms


def _step_ms(step: StepFacts) -> float:
    return step.plan_ms + step.run_ms + step.commit_ms
