"""One variable at a time: what each choice is worth.

Owns: the list of variations, and each one's ratio to the base.
May not know: what a rule or a format does.
Read next: `latency.py`, the workload; `compute/fusion.py`, the rules.
Seen in: `firsthand lab one-variable`.

Base and variation run alternately, and each pair gives a ratio: a machine that slows down for a
while slows both. The last variation is the base itself, loaded a second time: a ratio no further
from 1 than its own says nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from firsthand.checks import check_choice
from firsthand.compute.fusion import RULES
from firsthand.generation.llm import LLM
from firsthand.generation.load_options import LoadKeywords, LoadOptions
from firsthand.generation.report import Report
from firsthand.measure.latency import (
    Speed,
    check_sizes,
    format_of,
    prompt_of,
    run_once,
    speed_of,
    threads_of,
)
from firsthand.values import dataclass

STEP_TOKENS = (64, 128, 256, 512)
FORMATS = ("auto", "none", "int8", "int4")
KV_TYPES = ("int16", "float16", "float32", "int8")
KV_LAYOUTS = ("tiles", "rows")
KV_STORES = ("paged", "contiguous")
BLOCK_SIZES = (16, 64, 256)
VARIABLES = (
    *("rule", "threads", "format", "kv", "layout", "store", "block", "step", "speculation"),
    "base",
)


@dataclass(frozen=True, slots=True)
class Variation:
    """The base with one option changed. The base once more has the variable `base`."""

    variable: str
    value: str
    options: LoadOptions


@dataclass(frozen=True, slots=True)
class Outcome:
    """One variation, measured. Ratios are medians over the pairs; above 1 is faster. Of the tokens
    that were guessed in its runs so many were right."""

    variable: str
    value: str
    format: str
    threads: int
    base_speed: Speed
    speed: Speed
    prompt_ratio: float
    decode_ratio: float
    num_guesses: int = 0
    num_accepted: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def variations(base: LoadOptions, num_threads: int) -> list[Variation]:
    """Every other value of each variable; `num_threads` is what the base has."""
    changes: list[tuple[str, str, dict[str, Any]]] = []
    if base.executor == "native":
        rules = tuple(base.disabled_rules)
        names = [rule.name for rule in RULES if rule.name not in rules]
        changes += [("rule", f"no {name}", {"disabled_rules": (*rules, name)}) for name in names]
        if len(names) > 1:
            changes.append(("rule", "none", {"disabled_rules": (*rules, *names)}))
        changes += [
            ("threads", str(count), {"threads": count})
            for count in range(1, num_threads)
            if count & (count - 1) == 0
        ]
    for variable, name, values in (
        ("format", "quantization", FORMATS),
        ("kv", "kv_dtype", KV_TYPES),
        ("layout", "kv_layout", KV_LAYOUTS),
        ("store", "kv_store", KV_STORES),
        ("block", "block_size", BLOCK_SIZES if base.kv_store == "paged" else ()),
        ("step", "max_step_tokens", STEP_TOKENS),
    ):
        others = [value for value in values if value != getattr(base, name)]
        changes += [(variable, str(value), {name: value}) for value in others]
    if base.speculative_config is None:
        changes.append(("speculation", "ngram", {"speculative_config": {"method": "ngram"}}))
    else:
        changes.append(("speculation", "off", {"speculative_config": None}))
    changes.append(("base", "again", {}))
    return [Variation(name, value, replace(base, **change)) for name, value, change in changes]


def ablate(
    model: str,
    base: LoadOptions,
    prompt_tokens: int = 512,
    output_tokens: int = 64,
    repeats: int = 3,
    begin: Callable[[Variation], None] = lambda variation: None,
    only: Collection[str] = (),
) -> Iterator[Outcome]:
    """Load and measure each variation in turn beside the base; `begin` hears of it first. `only`
    names the variables to change, if not all; the base once more always comes last.

    Raises what a load raises, InvalidRequest and ContextLengthExceeded.
    """
    check_sizes(None, prompt_tokens, output_tokens, repeats)
    for name in only:
        check_choice("only", name, VARIABLES)
    with LLM(model, **keywords_of(base)) as base_llm:
        check_sizes(base_llm.loaded.spec.context_length, prompt_tokens, output_tokens, repeats)
        prompt = prompt_of(prompt_tokens, base_llm.loaded.limits.vocab_size)
        for variation in variations(base, threads_of(base_llm.loaded)):
            if only and variation.variable not in (*only, "base"):
                continue
            begin(variation)
            with LLM(model, **keywords_of(variation.options)) as llm:
                runs = [
                    run_once(each, prompt, output_tokens)
                    for _ in range(repeats + 1)
                    for each in (base_llm, llm)
                ]
                yield _outcome(variation, llm, list(zip(runs[2::2], runs[3::2], strict=True)))


def _outcome(variation: Variation, llm: LLM, pairs: Sequence[tuple[Report, Report]]) -> Outcome:
    return Outcome(
        variable=variation.variable,
        value=variation.value,
        format=format_of(llm.loaded),
        threads=threads_of(llm.loaded),
        base_speed=speed_of([base for base, _ in pairs]),
        speed=speed_of([varied for _, varied in pairs]),
        prompt_ratio=statistics.median(base.prompt_ms / varied.prompt_ms for base, varied in pairs),
        decode_ratio=statistics.median(
            base.predicted_ms / varied.predicted_ms for base, varied in pairs
        ),
        num_guesses=sum(varied.num_guesses for _, varied in pairs),
        num_accepted=sum(varied.num_accepted for _, varied in pairs),
    )


def keywords_of(options: LoadOptions) -> LoadKeywords:
    return cast(LoadKeywords, asdict(options))
