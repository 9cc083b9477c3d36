"""One step, operator by operator, against what the machine can do.

Owns: the sums over like operators, and the form that trace viewers read.
May not know: how an operator is timed; `LLM.trace` says it. Nothing is measured while no profile is
asked for.
Read next: `bounds.py`, the least time of an operator.

Of an executor over a library that has a profiler, the library's own calls are there too. They come
from further steps, under that profiler: it takes time itself, so the operators are timed without.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from firsthand.checks import check_integer
from firsthand.chrome_trace import document, span, tracks
from firsthand.compute.executor import CallTime, OpTime, ProfiledStep, Profiles
from firsthand.generation.llm import LLM
from firsthand.measure.bounds import op_bound_ms, reached_rates
from firsthand.measure.latency import quickest_trace, threads_of
from firsthand.measure.limits import MachineLimits, measure_limits
from firsthand.values import dataclass

# What makes like operators look different: layers, and the numbers of values.
DIFFERENCES = (
    (r"\+ v\d+", "+ x"),
    (r"\bv\d+(, )?", ""),
    (r"\bmodel\.|\blayers\.\d+\.", ""),
    (r"(, )?\blayer \d+", ""),
    (r"\(\)|\[\]", ""),
    (r" {2,}", " "),
)


@dataclass(frozen=True, slots=True)
class OpShare:
    """One operator. `limit_share`: its least time by its time; None where it has no bound."""

    op: OpTime
    start_ms: float
    limit_share: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """Operators that differ in their layer alone."""

    label: str
    count: int
    ms: float
    num_bytes: int
    num_macs: int
    limit_share: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """One traced step, the quickest of several, in order of execution."""

    step: Literal["prompt", "token"]
    num_tokens: int
    threads: int
    machine: MachineLimits
    operators: tuple[OpShare, ...]
    groups: tuple[Group, ...]  # the most time first
    calls: tuple[CallTime, ...] = ()  # of the library below, the most time first
    library_trace: dict[str, Any] | None = None

    @property
    def total_ms(self) -> float:
        return sum(one.op.ms for one in self.operators)


def profile(
    llm: LLM,
    prompt: Sequence[int],
    step: Literal["prompt", "token"] = "prompt",
    repeats: int = 5,
) -> Profile:
    """Trace `repeats` steps of `LLM.trace`, and measure the machine at the size of the weights."""
    check_integer("repeats", repeats, 1)
    ops = quickest_trace(llm, prompt, step, repeats)
    threads = threads_of(llm.loaded)
    machine = measure_limits(llm.memory().weights_bytes, threads)
    prompt_ops, token_ops = (ops, ()) if step == "prompt" else ((), ops)
    machine = machine.raised(reached_rates(prompt_ops, token_ops))
    found = profile_of(ops, step, machine)
    below = profile_library(llm, prompt, step, repeats)
    if below is None:
        return found
    return replace(found, calls=below.calls, library_trace=below.trace)


def profile_library(
    llm: LLM, prompt: Sequence[int], step: Literal["prompt", "token"], repeats: int
) -> ProfiledStep | None:
    """The quickest of several steps under the profiler of the library below, if it has one."""
    executor = llm.loaded.executor
    if not isinstance(executor, Profiles):
        return None
    with executor.profile_traces() as steps:
        for _ in range(repeats):
            llm.trace(prompt, step=step)
    return min(steps, key=lambda one: one.total_ms)


def profile_of(
    ops: Sequence[OpTime], step: Literal["prompt", "token"], machine: MachineLimits
) -> Profile:
    """The same, of a step that was traced already."""
    operators = []
    start_ms = 0.0
    for op in ops:
        operators.append(OpShare(op, start_ms, _share([op], machine)))
        start_ms += op.ms
    groups: dict[str, list[OpTime]] = {}
    for op in ops:
        groups.setdefault(label_of(op), []).append(op)
    together = [_group(label, alike, machine) for label, alike in groups.items()]
    return Profile(
        step=step,
        num_tokens=ops[0].shape[0],
        threads=machine.threads,
        machine=machine,
        operators=tuple(operators),
        groups=tuple(sorted(together, key=lambda group: -group.ms)),
    )


def label_of(op: OpTime) -> str:
    """What an operator is, without its layer and the numbers of its values."""
    text = op.detail.partition(" = ")[2] or f"{op.name}({op.detail})"
    for pattern, instead in DIFFERENCES:
        text = re.sub(pattern, instead, text)
    return text.strip()


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """The JSON object that Perfetto and chrome://tracing open. Times are microseconds.

    The library's own trace, where there is one: it has our operators as ranges around its calls.
    """
    if profile.library_trace is not None:
        return {**profile.library_trace, "otherData": profile.machine.to_dict()}
    track = f"{profile.step} step on {profile.threads} threads"
    events = [
        span(
            label_of(one.op),
            one.op.name,
            1,
            one.start_ms,
            one.op.ms,
            {
                "detail": one.op.detail,
                "shape": list(one.op.shape),
                "num_bytes": one.op.num_bytes,
                "num_macs": one.op.num_macs,
                "limit_share": one.limit_share,
            },
        )
        for one in profile.operators
    ]
    return document([*tracks("firsthand", [track]), *events], profile.machine.to_dict())


def _group(label: str, alike: Sequence[OpTime], machine: MachineLimits) -> Group:
    return Group(
        label=label,
        count=len(alike),
        ms=sum(op.ms for op in alike),
        num_bytes=sum(op.num_bytes for op in alike),
        num_macs=sum(op.num_macs for op in alike),
        limit_share=_share(alike, machine),
    )


def _share(ops: Sequence[OpTime], machine: MachineLimits) -> float | None:
    bound_ms = sum(op_bound_ms(op, machine) for op in ops)
    ms = sum(op.ms for op in ops)
    return bound_ms / ms if bound_ms > 0 and ms > 0 else None
