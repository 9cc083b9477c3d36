"""Stages in workers of Ray.

Owns: an actor for each stage, how work goes from one to the next, what is said when one is lost.
May not know: what a stage computes.
Read next: `links.py`, the seam; `opening.py`, where Ray comes from.

Work is passed as an argument from actor to actor: the process that asks holds references, and rows
of more than 100 kB never come to it. An actor answers the calls of one caller in their order, which
is that of the parts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from firsthand.cluster.pipeline.links import ranges
from firsthand.cluster.pipeline.stage import Loaded, Stage
from firsthand.cluster.pipeline.work import Work
from firsthand.errors import EngineError, EngineLost, FirsthandError
from firsthand.generation.load_options import LoadOptions

MAX_STEP_S = 600.0  # a step that takes longer hangs
MAX_LOAD_S = 3600.0
PINGS = 5


class RayLinks:
    """An actor per stage, each with a processor of its own as Ray counts them."""

    def __init__(self, model: str, options: Sequence[LoadOptions]) -> None:
        actor: Any = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Stage)
        self._actors = [actor.remote(number, model, one) for number, one in enumerate(options)]
        self._lost: str | None = None
        self._closed = False

    @property
    def num_stages(self) -> int:
        return len(self._actors)

    def load(self, split: Sequence[int]) -> list[Loaded]:
        asked = zip(self._actors, ranges(split), strict=True)
        return self._all([actor.load.remote(*layers) for actor, layers in asked], MAX_LOAD_S)

    def open_stores(self, num_blocks: int) -> list[int]:
        return self._all([actor.open_store.remote(num_blocks) for actor in self._actors])

    def run(self, works: Sequence[Work]) -> list[Work]:
        with self._named():
            refs = []
            for work in works:
                passed: Any = work
                for actor in self._actors:
                    passed = actor.step.remote(passed)
                refs.append(passed)
        return self._all(refs)

    def clocks(self) -> list[float]:
        """From the quickest of a few questions to each, half of which is the way there."""
        return [self._clock(actor) for actor in self._actors]

    def resident_bytes(self) -> list[int]:
        return self._all([actor.resident_bytes.remote() for actor in self._actors])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lost = self._lost or "the stages were closed"
        for actor in self._actors:
            with suppress(RayError, ValueError):
                ray.kill(actor)

    def _clock(self, actor: Any) -> float:
        found: list[tuple[float, float]] = []
        for _ in range(PINGS):
            asked_s = time.perf_counter()
            (there_s,) = self._all([actor.clock.remote()])
            back_s = time.perf_counter()
            found.append((back_s - asked_s, (asked_s + back_s) / 2 - there_s))
        return min(found)[1]

    def _all(self, refs: Sequence[Any], limit_s: float = MAX_STEP_S) -> list[Any]:
        with self._named():
            return list(ray.get(list(refs), timeout=limit_s))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Ray's errors as ours. One that is lost is lost for good: there is no step without it."""
        if self._lost is not None:
            raise EngineLost(self._lost)
        try:
            yield
        except RayActorError as error:
            self._lost = f"{self._name_of(error)} was lost"
            raise EngineLost(self._lost) from error
        except GetTimeoutError as error:
            self._lost = "a stage does not answer"
            raise EngineLost(self._lost) from error
        except RayTaskError as error:
            if isinstance(error.cause, FirsthandError | MemoryError):
                raise error.cause from None
            raise EngineError(f"a stage failed: {error.cause!r}") from error
        except RayError as error:
            raise EngineError(f"a stage cannot be asked: {error}") from error

    def _name_of(self, error: RayActorError) -> str:
        ids = [actor._actor_id.hex() for actor in self._actors]
        if error.actor_id in ids:
            return f"stage {ids.index(error.actor_id)} of {len(ids)}"
        return f"one of {len(ids)} stages"
