"""One variable at a time: what each choice is worth.

Owns: the list of variations, and each one's ratio to the base.
May not know: what a rule or a format does.
Read next: `latency.py`, the workload; `compute/fusion.py`, the rules.

The base is measured first and last: where the two differ by more than a variation does, the
machine was too restless to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from firsthand.compute.fusion import RULES
from firsthand.generation.llm import LLM
from firsthand.generation.loading import LoadKeywords, LoadOptions
from firsthand.measure.latency import Speed, check_sizes, format_of, measure_speed, threads_of

STEP_TOKENS = (64, 128, 256, 512)
FORMATS = ("auto", "none", "int8", "int4")
KV_TYPES = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class Variation:
    """The base with one option changed. The base itself has the variable `base`."""

    variable: str
    value: str
    options: LoadOptions


@dataclass(frozen=True, slots=True)
class Outcome:
    """One variation, measured. Ratios are of medians, by the base's; above 1 is faster."""

    variable: str
    value: str
    format: str
    threads: int
    speed: Speed
    prompt_ratio: float
    decode_ratio: float

    def to_dict(self) -> dict[str, Any]:
        speed = asdict(self.speed)
        names = ("variable", "value", "format", "threads", "prompt_ratio", "decode_ratio")
        return {name: getattr(self, name) for name in names} | speed


def variations(base: LoadOptions, num_threads: int) -> list[Variation]:
    """Every other value of each variable; `num_threads` is what the base has."""
    changes: list[tuple[str, str, dict[str, Any]]] = [("base", "", {})]
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
        ("step", "max_step_tokens", STEP_TOKENS),
    ):
        others = [value for value in values if value != getattr(base, name)]
        changes += [(variable, str(value), {name: value}) for value in others]
    changes.append(("base", "again", {}))
    return [Variation(name, value, replace(base, **change)) for name, value, change in changes]


def ablate(
    model: str,
    base: LoadOptions,
    prompt_tokens: int = 512,
    output_tokens: int = 64,
    repeats: int = 3,
    begin: Callable[[Variation], None] = lambda variation: None,
) -> Iterator[Outcome]:
    """Load and measure each variation in turn; `begin` hears of it first.

    Raises what a load raises, InvalidRequest and ContextLengthExceeded.
    """
    check_sizes(None, prompt_tokens, output_tokens, repeats)
    measured: Speed | None = None
    todo = [Variation("base", "", base)]
    while todo:
        variation = todo.pop(0)
        begin(variation)
        with LLM(model, **_keywords(variation.options)) as llm:
            speed = measure_speed(llm, prompt_tokens, output_tokens, repeats)
            threads, held = threads_of(llm.loaded), format_of(llm.loaded)
        if measured is None:
            measured = speed
            todo = variations(base, threads)[1:]
        yield Outcome(
            variable=variation.variable,
            value=variation.value,
            format=held,
            threads=threads,
            speed=speed,
            prompt_ratio=speed.prompt_tokens_per_second.median
            / measured.prompt_tokens_per_second.median,
            decode_ratio=speed.decode_tokens_per_second.median
            / measured.decode_tokens_per_second.median,
        )


def _keywords(options: LoadOptions) -> LoadKeywords:
    return cast(LoadKeywords, asdict(options))
