"""From a loaded model to an engine that can step: the parts, and who is given to whom.

Owns: the order in which they are made, and the first steps that warm them.
May not know: text, threads, processes.
Read next: `engine/engine.py`; above, `llm.py` (a thread around it) and `child.py` (a process).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from firsthand.compute.executor import Executor
from firsthand.compute.native._native import Threads
from firsthand.compute.native.cores import available_threads
from firsthand.engine.attempts import Runner
from firsthand.engine.constraints import Constraints
from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.engine.grammar import Grammars
from firsthand.engine.readings import Readings
from firsthand.engine.runner import ModelRunner
from firsthand.engine.sampler import Sampler
from firsthand.errors import EngineError
from firsthand.generation.load_options import window_of
from firsthand.generation.loading import LoadedModel
from firsthand.generation.sharing import build_scheduler
from firsthand.generation.speculating import speculation_of
from firsthand.request import FinishReason, Request, SamplingParams, StopRules
from firsthand.scheduling.scheduler import Scheduler
from firsthand.scheduling.waiting import Queue
from firsthand.values import dataclass

MAX_WAITING = 1024
WARM_TOKENS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """An engine and its runner; whoever steps the one may trace with the other. Of the scheduler's
    memory only counts may be read. `grammars` tell whether a text is one."""

    engine: Engine
    runner: ModelRunner
    scheduler: Scheduler
    grammars: Grammars


def assemble(
    loaded: LoadedModel,
    clock: Callable[[], float],
    on_step: Callable[[StepFacts], None],
    relieve: Callable[[], bool] = lambda: False,
    around: Callable[[Runner], Runner] = lambda runner: runner,
    queue: Queue | None = None,
) -> Assembly:
    """`loaded` is claimed by the caller: two engines would share scratch memory and blocks.
    `relieve` frees memory for a step that was refused some; False: there was none to free.
    `around` the runner may stand another, for the engine. `queue`: instead of the options' own."""
    grammars = Grammars(loaded.text, loaded.limits.vocab_size)
    sample = sampler_of(loaded.executor)
    runner = ModelRunner(
        loaded.executor,
        loaded.store,
        loaded.limits.vocab_size,
        sample,
        clock,
        Constraints(grammars),
        Readings(loaded.executor, sample, loaded.max_logit_rows),
        speculation_of(loaded, clock, sampler_of),
    )
    scheduler = build_scheduler(loaded, clock, queue=queue)
    window = window_of(loaded.options)
    engine = Engine(scheduler, around(runner), clock, on_step, grammars, window, relieve)
    return Assembly(engine, runner, scheduler, grammars)


def max_requests(loaded: LoadedModel) -> int:
    """What may wait and run together."""
    return MAX_WAITING + loaded.limits.max_sequences


class StepCost(NamedTuple):
    """What a step takes: time, and processor time of all threads."""

    ms: float
    cpu_ms: float


def warm_up(assembly: Assembly, loaded: LoadedModel) -> StepCost:
    """Run a short prompt twice, and a token after each: pages, threads and kernels have then been
    used. Gives an estimate of the longest step, from the second prompt. Nothing of it stays that
    a request could find: each has a cache salt of its own.

    Raises EngineError when a step fails.
    """
    limits = loaded.limits
    num_tokens = min(WARM_TOKENS, limits.context_length - 2, limits.max_step_tokens)
    if num_tokens < 1:
        return StepCost(0.0, 0.0)
    cost = StepCost(0.0, 0.0)
    for name in ("warm-up-1", "warm-up-2"):
        assembly.engine.add(
            Request(
                request_id=name,
                prompt_token_ids=(0,) * num_tokens,
                sampling=SamplingParams(temperature=0.0),
                stop=StopRules(max_tokens=2),
                seed=0,
                cache_salt=name,
            )
        )
        started_s, cpu_s = time.perf_counter(), time.process_time()
        events = assembly.engine.step()
        cost = StepCost(
            (time.perf_counter() - started_s) * 1e3, (time.process_time() - cpu_s) * 1e3
        )
        while assembly.engine.has_work:
            events = assembly.engine.step()
        finish = events[-1].finish
        if finish is None or finish.reason is not FinishReason.LENGTH:
            raise EngineError(f"the model's first step failed: {finish and finish.cause}")
    times = limits.max_step_tokens / num_tokens
    return StepCost(cost.ms * times, cost.cpu_ms * times)


def sampler_of(executor: Executor) -> Sampler:
    """Over the executor's own threads, or as many of its own beside one that has none to lend."""
    pool = getattr(executor, "pool", None)
    return Sampler(pool if isinstance(pool, Threads) else Threads(available_threads()))
