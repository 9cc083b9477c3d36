"""The engine's step: plan, run, commit.

Owns: the order of the three, the boundary around a failing runner, and one fact per step.
May not know: text, threads, arrays, files, who reads the facts.
Read next: `runner.py` (the real `Runner`), `worker.py` (who calls `step`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from firsthand.engine.facts import StepFacts
from firsthand.request import Request, TokenEvent
from firsthand.scheduling.plan import Drawn, StepPlan, StepResult
from firsthand.scheduling.scheduler import Scheduler


class Runner(Protocol):
    """Whatever computes. It keeps nothing between steps but the store's contents."""

    def run(self, plan: StepPlan) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class _Ran:
    result: StepResult
    error: str | None


class Engine:
    """A scheduler and a runner. Not thread-safe: one thread owns it; only `check` is for all.

    `clock` gives seconds and never goes back; `on_step` is called once per step, on this thread.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        on_step: Callable[[StepFacts], None],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._on_step = on_step

    @property
    def has_work(self) -> bool:
        return self._scheduler.num_waiting + self._scheduler.num_running > 0

    def check(self, request: Request) -> None:
        """Raise if the request can never be run. Safe from any thread."""
        self._scheduler.check(request)

    def add(self, request: Request) -> None:
        self._scheduler.add(request, self._clock())

    def abort(self, request_id: str, index: int | None = None) -> list[TokenEvent]:
        """End a request, or one of its sequences: one event per sequence that had not ended; the
        blocks are free at once."""
        return self._scheduler.abort(request_id, self._clock(), index)

    def step(self) -> list[TokenEvent]:
        """One step of all sequences; the tokens and ends that it brought."""
        started_s = self._clock()
        plan = self._scheduler.plan(started_s)
        request_ids = self._scheduler.request_ids(plan)
        planned_s = self._clock()
        ran = self._run(plan)
        ran_s = self._clock()
        events = self._scheduler.commit(plan, ran.result, ran_s)
        times_s = (started_s, planned_s, ran_s, self._clock())
        self._on_step(self._facts(plan, request_ids, ran, events, times_s))
        return events

    def _run(self, plan: StepPlan) -> _Ran:
        """A runner that raises fails every sequence of the plan, and nothing else."""
        try:
            return _Ran(self._runner.run(plan), None)
        except Exception as fault:
            error = f"the step failed: {type(fault).__name__}: {fault}"
            failed = tuple(Drawn(piece.sequence_id, -1, error=error) for piece in plan.slices)
            return _Ran(StepResult(failed, forward_ms=0.0, sample_ms=0.0), error)

    def _facts(
        self,
        plan: StepPlan,
        request_ids: tuple[str, ...],
        ran: _Ran,
        events: list[TokenEvent],
        times_s: tuple[float, float, float, float],
    ) -> StepFacts:
        started_s, planned_s, ran_s, committed_s = times_s
        return StepFacts(
            started_s=started_s,
            request_ids=request_ids,
            slice_tokens=tuple([len(piece.token_ids) for piece in plan.slices]),
            num_drawn=sum(event.token_id is not None for event in events),
            num_finished=sum(event.finish is not None for event in events),
            num_waiting=self._scheduler.num_waiting,
            num_running=self._scheduler.num_running,
            num_used_blocks=self._scheduler.num_used_blocks,
            plan_ms=(planned_s - started_s) * 1e3,
            run_ms=(ran_s - planned_s) * 1e3,
            forward_ms=ran.result.forward_ms,
            sample_ms=ran.result.sample_ms,
            commit_ms=(committed_s - ran_s) * 1e3,
            error=ran.error,
            waiting_by_class=self._scheduler.waiting_by_class,
            running_by_class=self._scheduler.running_by_class,
            num_cached_blocks=self._scheduler.num_cached_blocks,
            num_evicted_blocks=self._scheduler.num_evicted_blocks,
            planned=self._scheduler.last_plan,
        )
