"""A step that fails is computed again in halves, until whoever is at fault is alone.

Owns: the order of the attempts, their bound, and the log's line about them (the only place that
has the traceback).
May not know: what a step computes, requests, who is told of a failure.
Read next: `engine.py`, the only caller; `../scheduling/plan.py`.

Whatever a failed attempt wrote, the next one writes again: a slice writes the positions that it
computes and no others, and a draw depends on seed and position. So those that are not at fault get
the bits that an undisturbed step gives them. Copies of blocks are made again once, before anything
has succeeded: later they would undo what was computed into their targets.

One at fault among n costs 2·log2(n) attempts, and all of them together about as much as three
steps. `MAX_ATTEMPTS` bounds what a broken machine costs; who is not alone by then fails as well.

A step that was refused memory is first computed again as it was, if some could be freed; halves,
too, need less than the whole. A device that failed for good fails at every attempt: there is none
after that, and the process ends, so that another can begin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from firsthand.errors import DeviceLost
from firsthand.scheduling.plan import Drawn, SequenceSlice, StepPlan, StepResult, WasRead
from firsthand.values import dataclass

MAX_ATTEMPTS = 32  # after the first

_LOG = logging.getLogger(__name__)


class Runner(Protocol):
    """Whatever computes. Of one step only the store's contents may tell in a later one's result;
    what else it keeps saves time. One that raised may be given the same slices again."""

    def run(self, plan: StepPlan) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class Ran:
    """A result for the whole plan. `error` is the first attempt's, which `out_of_memory` says was
    refused memory; `num_attempts` came after it, and `num_failed` sequences have an error in the
    end."""

    result: StepResult
    error: str | None = None
    num_attempts: int = 0
    num_failed: int = 0
    out_of_memory: bool = False


def run_plan(runner: Runner, plan: StepPlan, relieve: Callable[[], bool] = lambda: False) -> Ran:
    """Run it; raises nothing that is an Exception but DeviceLost. `relieve` frees memory: False,
    there was none to free."""
    try:
        return Ran(runner.run(plan))
    except DeviceLost:
        raise
    except Exception as fault:
        _LOG.exception("a step of %d sequences failed", len(plan.slices))
        lacks_memory = isinstance(fault, MemoryError)
        return _Attempts(runner, plan).after(fault, again=lacks_memory and relieve())


class _Attempts:
    """Those of one plan that has failed as a whole."""

    def __init__(self, runner: Runner, plan: StepPlan) -> None:
        self._runner = runner
        self._plan = plan
        self._num_left = MAX_ATTEMPTS
        self._drawn: list[Drawn] = []
        self._reads: list[WasRead] = []
        self._num_failed = 0
        self._forward_ms = self._sample_ms = 0.0

    def after(self, fault: Exception, *, again: bool) -> Ran:
        """`again`: as it was, before any halves."""
        if not (again and self._try(self._plan) is None):
            self._in_halves(fault)
        return Ran(
            StepResult(tuple(self._drawn), self._forward_ms, self._sample_ms, tuple(self._reads)),
            _told(fault),
            MAX_ATTEMPTS - self._num_left,
            self._num_failed,
            isinstance(fault, MemoryError),
        )

    def _in_halves(self, fault: Exception) -> None:
        slices = self._plan.slices
        uncopied = None
        if len(slices) > 1 and self._plan.copies:
            uncopied = self._try(StepPlan((), self._plan.copies))
        if uncopied is None:
            self._halve(slices, fault)
        else:
            self._fail(slices, uncopied)

    def _halve(self, slices: Sequence[SequenceSlice], fault: Exception) -> None:
        """`slices` have failed together; their outcomes are added in their order."""
        if len(slices) <= 1:
            self._fail(slices, fault)
            return
        middle = len(slices) // 2
        for half in (slices[:middle], slices[middle:]):
            plan = replace(self._plan, slices=tuple(half), copies=())
            again = self._try(plan) if self._num_left else fault
            if again is None:
                continue
            if self._num_left:
                self._halve(half, again)
            else:
                self._fail(half, again)

    def _try(self, plan: StepPlan) -> Exception | None:
        """One attempt: what it raised, or None and its outcomes are added."""
        self._num_left -= 1
        try:
            result = self._runner.run(plan)
        except DeviceLost:
            raise
        except Exception as fault:
            return fault
        self._drawn += result.drawn
        self._reads += result.reads
        self._forward_ms += result.forward_ms
        self._sample_ms += result.sample_ms
        return None

    def _fail(self, slices: Sequence[SequenceSlice], fault: Exception) -> None:
        error = _told(fault)
        self._drawn += [Drawn(piece.sequence_id, -1, error=error) for piece in slices]
        self._num_failed += len(slices)


def _told(fault: Exception) -> str:
    return f"the step failed: {type(fault).__name__}: {fault}"
