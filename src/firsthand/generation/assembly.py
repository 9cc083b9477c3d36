"""From a loaded model to an engine that can step: the parts, and who is given to whom.

Owns: the order in which they are made, and the first steps that warm them.
May not know: text, threads, processes.
Read next: `engine/engine.py`; above, `llm.py` (a thread around it) and `child.py` (a process).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firsthand.compute.executor import Executor
from firsthand.compute.native._native import Threads
from firsthand.compute.native.executor import available_threads
from firsthand.engine.engine import Engine
from firsthand.engine.facts import StepFacts
from firsthand.engine.runner import ModelRunner
from firsthand.engine.sampler import Sampler
from firsthand.generation.loading import LoadedModel
from firsthand.generation.sharing import build_scheduler
from firsthand.request import Request, SamplingParams, StopRules

MAX_WAITING = 1024
WARM_TOKENS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """An engine and its runner; whoever steps the one may trace with the other."""

    engine: Engine
    runner: ModelRunner


def assemble(
    loaded: LoadedModel, clock: Callable[[], float], on_step: Callable[[StepFacts], None]
) -> Assembly:
    """`loaded` is claimed by the caller: two engines would share scratch memory and blocks."""
    runner = ModelRunner(
        loaded.executor,
        loaded.store,
        loaded.limits.vocab_size,
        Sampler(_pool_of(loaded.executor)),
        clock,
    )
    scheduler = build_scheduler(loaded, clock)
    return Assembly(Engine(scheduler, runner, clock, on_step), runner)


def max_requests(loaded: LoadedModel) -> int:
    """What may wait and run together."""
    return MAX_WAITING + loaded.limits.max_sequences


def warm_up(assembly: Assembly, loaded: LoadedModel) -> None:
    """Two steps, of a prompt and of one token: pages, threads and kernels have then been used.

    Nothing of it stays: its blocks are free, and its cache salt is its own.
    """
    num_tokens = min(WARM_TOKENS, loaded.limits.context_length - 2, loaded.limits.max_step_tokens)
    if num_tokens < 1:
        return
    request = Request(
        request_id="warm-up",
        prompt_token_ids=(0,) * num_tokens,
        sampling=SamplingParams(temperature=0.0),
        stop=StopRules(max_tokens=2),
        seed=0,
        cache_salt="warm-up",
    )
    assembly.engine.add(request)
    while assembly.engine.has_work:
        assembly.engine.step()


def _pool_of(executor: Executor) -> Threads:
    """The executor's own threads, or as many of the sampler's for one that has none to lend."""
    pool = getattr(executor, "pool", None)
    return pool if isinstance(pool, Threads) else Threads(available_threads())
