"""How fast one sequence goes: a prompt, then new tokens, one after another.

Owns: the workload (ids spread over the vocabulary, greedy, the end ignored), the medians, and the
share of the machine's limit.
May not know: how anything is computed.
Read next: `bounds.py`, what the share is a share of.

One run warms up and is left out. The peak of the memory is read before the machine is measured,
whose own buffer is as large as the weights.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from firsthand.checks import check_integer
from firsthand.compute.buckets import CompileFacts
from firsthand.compute.executor import OpTime
from firsthand.compute.native.cores import available_threads
from firsthand.errors import ContextLengthExceeded
from firsthand.generation.llm import LLM
from firsthand.generation.loading import LoadedModel
from firsthand.generation.report import Report
from firsthand.measure.bounds import (
    Work,
    decode_bound_ms,
    prompt_bound_ms,
    reached_rates,
    work_of,
)
from firsthand.measure.limits import MachineLimits, measure_limits
from firsthand.processes import peak_resident_bytes
from firsthand.values import dataclass

NUM_TRACES = 3
MIN_FORMAT_SHARE = 0.01  # gains and biases do not name a model's format


@dataclass(frozen=True, slots=True)
class Spread:
    """Several runs of one measurement."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of the prompt, and of the tokens after the first; and the first one's time.

    `ttft_ms` is the median from the call to the first token.
    """

    prompt_tokens_per_second: Spread
    decode_tokens_per_second: Spread
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class Latency:
    """One sequence, measured. `limit_share_*`: the median against the bound of `bounds.py`.

    `compiled`: the steps of all runs, the first one included; None where nothing is compiled.
    """

    speed: Speed
    format: str
    threads: int
    peak_rss_bytes: int
    machine: MachineLimits
    limit_share_prompt: float
    limit_share_decode: float
    compiled: CompileFacts | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.speed),
            "format": self.format,
            "threads": self.threads,
            "peak_rss_bytes": self.peak_rss_bytes,
            "machine": self.machine.to_dict(),
            "limit_share": {"prompt": self.limit_share_prompt, "decode": self.limit_share_decode},
            "compile": None if self.compiled is None else self.compiled.to_dict(),
        }


def measure_latency(
    llm: LLM, prompt_tokens: int = 512, output_tokens: int = 128, repeats: int = 5
) -> Latency:
    """Time `repeats` runs and measure the machine beside them.

    Raises InvalidRequest or ContextLengthExceeded, naming the argument.
    """
    speed = measure_speed(llm, prompt_tokens, output_tokens, repeats)
    compiled = llm.loaded.compiled_steps
    peak_bytes = peak_resident_bytes()
    num_traced = min(prompt_tokens, llm.loaded.limits.max_step_tokens)
    prompt = prompt_of(num_traced, llm.loaded.limits.vocab_size)
    prompt_ops, token_ops = (quickest_trace(llm, prompt, step) for step in ("prompt", "token"))
    work = work_of(prompt_ops, token_ops, num_traced)
    threads = threads_of(llm.loaded)
    machine = measure_limits(work.weight_bytes, threads)
    machine = machine.raised(reached_rates(prompt_ops, token_ops))
    prompt_share, decode_share = limit_shares(work, machine, speed, prompt_tokens, output_tokens)
    return Latency(
        speed=speed,
        format=format_of(llm.loaded),
        threads=threads,
        peak_rss_bytes=peak_bytes,
        machine=machine,
        limit_share_prompt=prompt_share,
        limit_share_decode=decode_share,
        compiled=compiled,
    )


def measure_speed(llm: LLM, prompt_tokens: int, output_tokens: int, repeats: int) -> Speed:
    """As `measure_latency`, without the machine."""
    check_sizes(llm.loaded.spec.context_length, prompt_tokens, output_tokens, repeats)
    prompt = prompt_of(prompt_tokens, llm.loaded.limits.vocab_size)
    return speed_of([run_once(llm, prompt, output_tokens) for _ in range(repeats + 1)][1:])


def run_once(llm: LLM, prompt: Sequence[int], output_tokens: int) -> Report:
    """With a salt of its own: nothing that an earlier run computed may be found."""
    stream = llm.stream(
        prompt,
        max_tokens=output_tokens,
        temperature=0,
        ignore_end=True,
        cache_salt=secrets.token_hex(8),
    )
    return stream.completion().report


def speed_of(reports: Sequence[Report]) -> Speed:
    return Speed(
        spread_of([report.prompt_per_second or 0.0 for report in reports]),
        spread_of([report.predicted_per_second or 0.0 for report in reports]),
        statistics.median(report.ttft_ms for report in reports),
    )


def check_sizes(
    context_length: int | None, prompt_tokens: int, output_tokens: int, repeats: int
) -> None:
    """A rate of output needs a second token. `context_length` None: the model is not loaded yet."""
    check_integer("prompt_tokens", prompt_tokens, 1)
    check_integer("output_tokens", output_tokens, 2)
    check_integer("repeats", repeats, 1)
    if context_length is not None and prompt_tokens + output_tokens > context_length:
        raise ContextLengthExceeded(
            "prompt_tokens",
            f"{prompt_tokens} and output_tokens {output_tokens} exceed the context of "
            f"{context_length} tokens",
        )


def prompt_of(num_tokens: int, vocab_size: int) -> list[int]:
    """Ids spread over the vocabulary: the same for every model of its size."""
    return [(7919 * index + 13) % vocab_size for index in range(num_tokens)]


def limit_shares(
    work: Work, limits: MachineLimits, speed: Speed, prompt_tokens: int, output_tokens: int
) -> tuple[float, float]:
    """(prompt, decode): the bound's time by the median's; 1 is the limit."""
    prompt_ms = prompt_tokens / speed.prompt_tokens_per_second.median * 1e3
    token_ms = 1e3 / speed.decode_tokens_per_second.median
    return (
        prompt_bound_ms(work, limits, prompt_tokens) / prompt_ms,
        decode_bound_ms(work, limits, prompt_tokens, output_tokens) / token_ms,
    )


def quickest_trace(
    llm: LLM, prompt: Sequence[int], step: Literal["prompt", "token"], repeats: int = NUM_TRACES
) -> tuple[OpTime, ...]:
    """One whole step, the quickest of several: its parts belong together."""
    traces = [llm.trace(prompt, step=step) for _ in range(repeats)]
    return min(traces, key=lambda ops: sum(op.ms for op in ops))


def spread_of(values: Sequence[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))


def threads_of(loaded: LoadedModel) -> int:
    """Those of the executor; of one that keeps it to itself, the cores it may use."""
    return int(getattr(loaded.executor, "threads", None) or available_threads())


def format_of(loaded: LoadedModel) -> str:
    """The formats that the weights are held in, the one with the most bytes first."""
    sizes: dict[str, int] = {}
    for tensor in loaded.weights.tensors:
        sizes[tensor.format] = sizes.get(tensor.format, 0) + tensor.held_bytes
    least = MIN_FORMAT_SHARE * sum(sizes.values())
    shown = [name for name, size in sizes.items() if size >= least]
    return ", ".join(sorted(shown, key=lambda name: -sizes[name]))
