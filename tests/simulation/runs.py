"""Many seeds, on several processes; and of a failure the seed, the command, and a smaller case.

Owns: `run_seeds`, `replay`, and the text that a failure is told in.
May not know: what a workload holds.
Read next: `__main__.py`, the command; `test_simulation.py`.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields

from tests.simulation.model import Violation
from tests.simulation.shrink import MAX_TRIES, Shrinker
from tests.simulation.workload import Ask, Setup, Workload, random_workload
from tests.simulation.world import World

MAX_TOLD = 30  # requests of a shrunk workload that are printed


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    invariant: str
    what: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of several seeds came to; it stops at the first failure."""

    num_seeds: int
    num_steps: int
    seen: Counter[str]
    failure: Failure | None


def failure_of(workload: Workload) -> Violation | None:
    try:
        World(workload).play()
    except Violation as violation:
        return violation
    return None


def run_seeds(first: int, stride: int, num_steps: int) -> Report:
    """Seeds first, first + stride, … until so many steps are done, or one fails."""
    seed, done, seen = first, 0, Counter[str]()
    while done < num_steps:
        world = World(random_workload(seed))
        failure = None
        try:
            world.play()
        except Violation as violation:
            failure = Failure(seed, violation.invariant, str(violation))
        done += max(1, world.num_steps)
        seen += world.seen
        seed += stride
        if failure is not None:
            return Report((seed - first) // stride, done, seen, failure)
    return Report((seed - first) // stride, done, seen, None)


def run_parallel(first: int, num_steps: int, num_processes: int) -> Report:
    """The seeds from `first` on, shared out. Which ones are run depends on the arguments alone."""
    if num_processes == 1:
        return run_seeds(first, 1, num_steps)
    share = -(-num_steps // num_processes)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        runs = [pool.submit(run_seeds, first + at, num_processes, share)
                for at in range(num_processes)]  # fmt: skip
        reports = [run.result() for run in runs]
    seen: Counter[str] = sum((report.seen for report in reports), Counter())
    failures = [report.failure for report in reports if report.failure is not None]
    return Report(
        sum(report.num_seeds for report in reports),
        sum(report.num_steps for report in reports),
        seen,
        min(failures, key=lambda failure: failure.seed, default=None),
    )


def told(failure: Failure, max_tries: int = MAX_TRIES) -> str:
    """A failure in words: what, how to see it again, and the smallest workload that shows it."""

    def fails(workload: Workload) -> bool:
        violation = failure_of(workload)
        return violation is not None and violation.invariant == failure.invariant

    whole = random_workload(failure.seed)
    shrinker = Shrinker(fails, max_tries)
    small = shrinker.shrink(whole)
    asks = "".join(f"        {_brief(ask, Ask(ask.mark))},\n" for ask in small.asks[:MAX_TOLD])
    return (
        f"seed {failure.seed}: {failure.what}\n"
        f"again: make simulate SEED={failure.seed} STEPS=1\n"
        f"{len(small.asks)} of {len(whole.asks)} requests are enough "
        f"(after {shrinker.num_tries} tries): {failure_of(small)}\n"
        f"Workload(\n    {_brief(small.setup, Setup())},\n    (\n{asks}    ),\n)"
    )


def _brief(value: Ask | Setup, plain: Ask | Setup) -> str:
    """As Python, without what is as in `plain`."""
    named = [(one.name, getattr(value, one.name)) for one in fields(value)]
    told = [f"{name}={it!r}" for name, it in named if name == "mark" or it != getattr(plain, name)]
    return f"{type(value).__name__}({', '.join(told)})"
