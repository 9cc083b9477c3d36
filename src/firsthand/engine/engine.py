"""The engine's step: plan, run, commit.

Owns: the order of the three, one fact per step, and the requests that wait for their grammar.
May not know: text, threads, arrays, files, who reads the facts.
Read next: `attempts.py` (a step that fails), `runner.py` (the real `Runner`), `worker.py` (who
calls `step`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait

from firsthand.engine.attempts import Ran, Runner, run_plan
from firsthand.engine.facts import BatchFacts, GuessFacts, StepFacts
from firsthand.engine.grammar import Grammars, Matcher
from firsthand.engine.microbatch import MicroBatcher, Window
from firsthand.errors import FirsthandError, InvalidRequest
from firsthand.request import Finish, FinishReason, Request, TokenEvent
from firsthand.scheduling.picture import Picture
from firsthand.scheduling.plan import StepPlan
from firsthand.scheduling.scheduler import Scheduler
from firsthand.values import dataclass

PREPARE_S = 0.002  # how long a step without work waits for a grammar


@dataclass(frozen=True, slots=True, eq=False)
class _Preparing:
    """A request whose grammar is being compiled."""

    request: Request
    arrival_s: float
    compiling: Future[Matcher]


class Engine:
    """A scheduler and a runner. Not thread-safe: one thread owns it; only `check` is for all.

    `clock` gives seconds and never goes back; `on_step` is called once per step, on this thread.
    A request with a grammar comes to the scheduler when that is compiled, which is done on another
    thread; without `grammars` there can be none. One that generates nothing waits for company by
    the rules of `window`. `relieve` is asked for memory when a step was refused some.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        on_step: Callable[[StepFacts], None],
        grammars: Grammars | None = None,
        window: Window | None = None,
        relieve: Callable[[], bool] = lambda: False,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._on_step = on_step
        self._grammars = grammars
        self._relieve = relieve
        self._preparing: dict[str, _Preparing] = {}
        self._microbatcher = MicroBatcher(window or Window())
        self._started: list[BatchFacts] = []  # batches, for the next facts

    @property
    def has_work(self) -> bool:
        return self._is_scheduled or bool(self._preparing) or self.idle_s == 0.0

    @property
    def idle_s(self) -> float | None:
        """How long there is nothing to do where there is no work now, if nothing comes; None: for
        ever."""
        due_s = self._microbatcher.due_s()
        return None if due_s is None else max(0.0, due_s - self._clock())

    @property
    def _is_scheduled(self) -> bool:
        return self._scheduler.num_waiting + self._scheduler.num_running > 0

    def check(self, request: Request) -> None:
        """Raise if the request can never be run. Safe from any thread."""
        self._scheduler.check(request)

    def add(self, request: Request) -> None:
        """Raises InvalidRequest or CapacityExceeded, and then changes nothing. A grammar that turns
        out to be none ends its request with an error; ask `Grammars.compile` before."""
        if request.request_id in self._preparing or request.request_id in self._microbatcher:
            raise InvalidRequest("request_id", f"{request.request_id!r} is already in progress")
        grammar = request.grammar
        if grammar is not None:
            if self._grammars is None:
                raise InvalidRequest(grammar.field, "this engine takes no grammars")
            if self._grammars.find(grammar) is None:
                self._scheduler.check(request)
                compiling = self._grammars.compile_later(grammar)
                one = _Preparing(request, self._clock(), compiling)
                self._preparing[request.request_id] = one
                return
        if request.generates:
            self._scheduler.add(request, self._clock())
            return
        self._scheduler.check(request)
        self._microbatcher.add(request, self._clock())

    def abort(self, request_id: str, index: int | None = None) -> list[TokenEvent]:
        """End a request, or one of its sequences: one event per sequence that had not ended; the
        blocks are free at once. A request whose grammar is not compiled ends whole."""
        preparing = self._preparing.pop(request_id, None)
        if preparing is not None:
            preparing.compiling.cancel()
            return self._ends(preparing.request, Finish(FinishReason.CANCELLED))
        held = self._microbatcher.remove(request_id)
        if held is not None:
            return self._ends(held, Finish(FinishReason.CANCELLED))
        events = self._scheduler.abort(request_id, self._clock(), index)
        self._tell_ends(events)
        return events

    def picture(self) -> Picture:
        """Who runs and waits now."""
        return self._scheduler.picture(self._clock())

    def step(self) -> list[TokenEvent]:
        """One step of all sequences; the tokens and ends that it brought."""
        if self._preparing or self._microbatcher.num_waiting:
            self._start_batches()
            failed = self._schedule_prepared() if self._preparing else []
            if failed or not self._is_scheduled:
                return failed
        started_s = self._clock()
        plan = self._scheduler.plan(started_s)
        request_ids = self._scheduler.request_ids(plan)
        planned_s = self._clock()
        ran = run_plan(self._runner, plan, self._relieve)
        ran_s = self._clock()
        events = self._scheduler.commit(plan, ran.result, ran_s)
        times_s = (started_s, planned_s, ran_s, self._clock())
        self._on_step(self._facts(plan, request_ids, ran, events, times_s))
        self._tell_ends(events)
        return events

    def _start_batches(self) -> None:
        """Those whose time has come. They were checked when they came."""
        now_s = self._clock()
        while batch := self._microbatcher.take(now_s):
            for one in batch:
                self._scheduler.add(one.request, one.arrival_s)
            wait_s = now_s - min(one.arrival_s for one in batch)
            self._started.append(BatchFacts(len(batch), wait_s))

    def _tell_ends(self, events: list[TokenEvent]) -> None:
        if self._microbatcher.is_running:
            for event in events:
                if event.finish is not None:
                    self._microbatcher.ended(event.request_id)

    def _schedule_prepared(self) -> list[TokenEvent]:
        """Hand over the requests whose grammar is compiled; the ends of those whose is none."""
        if not self._is_scheduled:
            waiting = [one.compiling for one in self._preparing.values()]
            wait(waiting, timeout=PREPARE_S, return_when=FIRST_COMPLETED)
        events: list[TokenEvent] = []
        for one in [one for one in self._preparing.values() if one.compiling.done()]:
            del self._preparing[one.request.request_id]
            fault = one.compiling.exception()
            if fault is None:
                try:
                    self._scheduler.add(one.request, one.arrival_s)
                except FirsthandError as refusal:
                    fault = refusal
            if fault is not None:
                finish = Finish(FinishReason.ERROR, _told(fault))
                events += self._ends(one.request, finish)
        return events

    def _ends(self, request: Request, finish: Finish) -> list[TokenEvent]:
        """Of a request of which nothing has run."""
        now_s = self._clock()
        return [
            TokenEvent(request.request_id, None, now_s, finish=finish, index=index)
            for index in request.beginnings
        ]

    def _facts(
        self,
        plan: StepPlan,
        request_ids: tuple[str, ...],
        ran: Ran,
        events: list[TokenEvent],
        times_s: tuple[float, float, float, float],
    ) -> StepFacts:
        started_s, planned_s, ran_s, committed_s = times_s
        batches, self._started = tuple(self._started), []
        slice_tokens = [len(piece.token_ids) for piece in plan.slices]
        guesses = _guesses(plan, request_ids, ran, slice_tokens) if plan.max_guesses else ()
        return StepFacts(
            started_s=started_s,
            request_ids=request_ids,
            slice_tokens=tuple(slice_tokens),
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
            num_attempts=ran.num_attempts,
            num_failed=ran.num_failed,
            out_of_memory=ran.out_of_memory,
            waiting_by_class=self._scheduler.waiting_by_class,
            running_by_class=self._scheduler.running_by_class,
            num_cached_blocks=self._scheduler.num_cached_blocks,
            num_evicted_blocks=self._scheduler.num_evicted_blocks,
            planned=self._scheduler.last_plan,
            batches=batches,
            guesses=guesses,
            guess_ms=ran.result.guess_ms,
        )


def _guesses(
    plan: StepPlan, request_ids: tuple[str, ...], ran: Ran, slice_tokens: list[int]
) -> tuple[GuessFacts, ...]:
    """Adds to `slice_tokens` the guesses that were right."""
    found = []
    drawn = {outcome.sequence_id: outcome for outcome in ran.result.drawn if outcome.num_guesses}
    for at, piece in enumerate(plan.slices):
        outcome = drawn.get(piece.sequence_id)
        if outcome is not None:
            slice_tokens[at] += len(outcome.then)
            found.append(GuessFacts(request_ids[at], outcome.num_guesses, len(outcome.then)))
    return tuple(found)


def _told(fault: BaseException) -> str:
    return str(fault) if isinstance(fault, FirsthandError) else f"{type(fault).__name__}: {fault}"
