"""One variable at a time, over the whole system: what each choice is worth to many requests.

Owns: the variables and their values, the two workloads, each value's ratios to the base.
May not know: what a value does; which options a profile has (they are given).
Read next: `ablation.py`, the same for the kernels and one sequence; `ablation_page.py`, the report.

`answers`: prompts that begin alike and go on differently, all handed over at once; how many tokens
come out a second, how long the median first token and the slowest answers take. `texts`: texts to
embed that arrive one by one, which is what a window and its batches are about. As there, base and
variation run alternately, each pair gives a ratio, and the base again says how far to trust it.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from firsthand.checks import check_choice, check_integer
from firsthand.errors import ContextLengthExceeded
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadOptions
from firsthand.measure.ablation import (
    BLOCK_SIZES,
    FORMATS,
    KV_LAYOUTS,
    KV_STORES,
    KV_TYPES,
    Variation,
    keywords_of,
)
from firsthand.measure.latency import prompt_of
from firsthand.values import dataclass

Profiles = Mapping[str, Mapping[str, Any]]  # options of a load, by the profile's name
# In the order of the report: variable, option of a load, values. A row more is a variable more.
CHOICES: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("batch", "max_sequences", (1, 4, 8, 16, 32)),
    ("chunk", "max_step_tokens", (64, 128, 256, 512)),
    ("window", "max_batch_wait_s", (0.0, 0.01, 0.05)),
    ("prefix", "prefix_cache", (True, False)),
    ("format", "quantization", FORMATS),
    ("kv", "kv_dtype", KV_TYPES),
    ("layout", "kv_layout", KV_LAYOUTS),
    ("store", "kv_store", KV_STORES),
    ("block", "block_size", BLOCK_SIZES),
    ("scheduler", "scheduler", ("fair", "static")),
    ("speculation", "speculative_config", (None, {"method": "ngram"})),
)
PROFILE, BASE = "profile", "base"
VARIABLES = (*(name for name, _, _ in CHOICES), PROFILE, BASE)
WITH_TEXTS = ("window", PROFILE, BASE)  # the others change nothing about texts
MIN_BATCH = 8  # a window without a smallest batch ends at once in an idle engine
BASE_SEQUENCES = 16
SHARED_SHARE = 0.5  # of a prompt
NUM_TEXTS, TEXT_TOKENS, TEXT_GAP_S = 32, 16, 0.004


@dataclass(frozen=True, slots=True)
class SystemOutcome:
    """One value, measured. Each ratio is the median over the pairs, above 1 where it is better;
    `values` are medians of the variation, `base_values` of the base beside it."""

    variable: str
    value: str
    values: dict[str, float]
    base_values: dict[str, float]
    ratios: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Work:
    """How much of it: so many requests of so many tokens."""

    num_requests: int = 32
    prompt_tokens: int = 128
    output_tokens: int = 32

    def __post_init__(self) -> None:
        check_integer("num_requests", self.num_requests, 2, 512)
        check_integer("prompt_tokens", self.prompt_tokens, 2)
        check_integer("output_tokens", self.output_tokens, 2)


LESS_IS_BETTER = {"tokens_per_second": False, "ttft_ms": True, "p95_answer_ms": True}
LESS_IS_BETTER |= {"texts_per_second": False, "text_ms": True}


def system_variations(base: LoadOptions, profiles: Profiles) -> list[Variation]:
    """Every other value of each variable, then the profiles, then the base again."""
    found = []
    for variable, name, values in CHOICES:
        if variable == "block" and base.kv_store != "paged":
            continue
        for value in values:
            if value == getattr(base, name):
                continue
            changed = {name: value}
            if variable == "window":
                changed["min_batch_size"] = max(MIN_BATCH, base.min_batch_size)
            found.append(Variation(variable, _shown(value), replace(base, **changed)))
    for profile, changes in profiles.items():
        found.append(Variation(PROFILE, profile, replace(base, **changes)))
    return [*found, Variation(BASE, "again", base)]


def ablate_system(
    model: str,
    base: LoadOptions,
    profiles: Profiles,
    work: Work,
    repeats: int = 3,
    begin: Callable[[Variation], None] = lambda variation: None,
    only: Collection[str] = (),
) -> Iterator[SystemOutcome]:
    """Load and measure each variation in turn beside the base; `begin` hears of it first. `only`
    names the variables, if not all; the base again always comes last.

    Raises what a load raises, InvalidRequest and ContextLengthExceeded.
    """
    check_integer("repeats", repeats, 1)
    for name in only:
        check_choice("only", name, VARIABLES)
    if base.max_sequences is None:
        base = replace(base, max_sequences=BASE_SEQUENCES)
    with LLM(model, **keywords_of(base)) as base_llm:
        limit = base_llm.loaded.limits.context_length
        if work.prompt_tokens + work.output_tokens > limit:
            raise ContextLengthExceeded(
                "prompt_tokens",
                f"{work.prompt_tokens} and output_tokens {work.output_tokens} exceed the context "
                f"of {limit} tokens",
            )
        for variation in system_variations(base, profiles):
            if only and variation.variable not in (*only, BASE):
                continue
            begin(variation)
            with LLM(model, **keywords_of(variation.options)) as llm:
                pairs = [
                    (_run(base_llm, work, variation), _run(llm, work, variation))
                    for _ in range(repeats + 1)
                ][1:]
            yield _outcome(variation, pairs)


def _run(llm: LLM, work: Work, variation: Variation) -> dict[str, float]:
    found = {} if variation.variable == "window" else run_answers(llm, work)
    return found | (run_texts(llm) if variation.variable in WITH_TEXTS else {})


def run_answers(llm: LLM, work: Work) -> dict[str, float]:
    """With a salt of its own: prefixes are found within the run alone."""
    salt = secrets.token_hex(8)
    vocab_size = llm.loaded.limits.vocab_size
    shared = prompt_of(int(work.prompt_tokens * SHARED_SHARE), vocab_size)
    own = work.prompt_tokens - len(shared)
    started_s = time.perf_counter()
    streams = [
        llm.stream(
            [*shared, *((7919 * at + 31 * number + 17) % vocab_size for at in range(own))],
            max_tokens=max(1, work.output_tokens * (1 + 5 * number % 8) // 8),
            temperature=0,
            ignore_end=True,
            cache_salt=salt,
        )
        for number in range(work.num_requests)
    ]
    reports = [stream.completion().report for stream in streams]
    seconds = time.perf_counter() - started_s
    answers_ms = sorted(one.total_ms for one in reports)
    return {
        "tokens_per_second": sum(one.num_tokens for one in reports) / seconds,
        "ttft_ms": statistics.median(one.ttft_ms for one in reports),
        "p95_answer_ms": answers_ms[min(len(answers_ms) - 1, int(0.95 * len(answers_ms)))],
    }


def run_texts(llm: LLM) -> dict[str, float]:
    """Each from a thread of its own, a few milliseconds after the one before."""
    vocab_size = llm.loaded.limits.vocab_size
    salt = secrets.token_hex(8)
    zero_s = time.perf_counter()

    def embed(number: int) -> float:
        due_s = zero_s + number * TEXT_GAP_S
        time.sleep(max(0.0, due_s - time.perf_counter()))
        ids = [(7919 * at + 31 * number) % vocab_size for at in range(TEXT_TOKENS)]
        llm.embed([ids], cache_salt=salt)
        return time.perf_counter() - due_s

    with ThreadPoolExecutor(NUM_TEXTS) as threads:
        took_s = list(threads.map(embed, range(NUM_TEXTS)))
    seconds = time.perf_counter() - zero_s
    return {"texts_per_second": NUM_TEXTS / seconds, "text_ms": statistics.median(took_s) * 1e3}


def _outcome(
    variation: Variation, pairs: Sequence[tuple[dict[str, float], dict[str, float]]]
) -> SystemOutcome:
    names = list(pairs[0][0])
    return SystemOutcome(
        variation.variable,
        variation.value,
        {name: statistics.median(varied[name] for _, varied in pairs) for name in names},
        {name: statistics.median(base[name] for base, _ in pairs) for name in names},
        {name: statistics.median(_ratio(name, *pair) for pair in pairs) for name in names},
    )


def _ratio(name: str, base: Mapping[str, float], varied: Mapping[str, float]) -> float:
    ratio = varied[name] / base[name]
    return 1 / ratio if LESS_IS_BETTER[name] else ratio


def _shown(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, dict):
        return str(value["method"])
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
