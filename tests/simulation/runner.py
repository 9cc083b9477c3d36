"""The fake runner: it holds each plan against what is due, then reads, writes and draws.

Owns: `Clock`, and `FakeRunner`, which stands where the real `engine/runner.py` does.
May not know: how the plan came about.
Read next: `model.py`, what it computes with; `invariants.py`, what it asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from firsthand.engine.attempts import MAX_ATTEMPTS
from firsthand.scheduling.facts import PlanFacts
from firsthand.scheduling.plan import Drawn, SequenceSlice, StepPlan, StepResult
from tests.simulation.invariants import Watch
from tests.simulation.model import GARBAGE, Shadow, Violation, next_token
from tests.simulation.order import Life
from tests.simulation.workload import VOCAB, Setup

LOOK_EVERY = 4  # a sequence's whole cache is read again after so many of its steps
FAULT = "a fault on purpose"
CAUSES = {
    "error": FAULT,
    "missing": "the runner gave no token",
    "outside": f"outside 0…{VOCAB - 1}",
}


class Broken(RuntimeError):
    """The runner raises, on purpose."""


@dataclass(slots=True)
class Clock:
    """Seconds. Nobody waits: whoever computes moves it."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeRunner:
    """A `Runner`. `facts` and `num_free` ask the scheduler about the plan at hand; `meanwhile` is
    called when all is computed, before the plan is committed."""

    def __init__(self, setup: Setup, watch: Watch, shadow: Shadow, clock: Clock) -> None:
        self._setup = setup
        self._watch = watch
        self._shadow = shadow
        self._clock = clock
        self._faults, self._jumps = frozenset(setup.faults), frozenset(setup.jumps)
        self._has_blocks = setup.kind != "regions"
        self.facts: Callable[[], PlanFacts] = PlanFacts
        self.num_free: Callable[[], int] = int
        self.meanwhile: Callable[[], None] = lambda: None
        self.trace: hashlib._Hash | None = None
        self._again: dict[int, tuple[Life, SequenceSlice]] = {}  # of a step that has failed
        self._culprits: frozenset[int] = frozenset()
        self._is_alone = False
        self._num_parts = 0

    def settle(self) -> None:
        """The step is over. Who is left was given up: alone in it, at fault, or at the bound."""
        for life, _ in self._again.values():
            if not (self._is_alone or self._num_parts >= MAX_ATTEMPTS):
                raise Violation("I3", f"{life} was given up with others that are at fault")
            self._fail(life)
        self._again = {}

    def run(self, plan: StepPlan) -> StepResult:
        """Raises Broken where the workload says so, and Violation for all that is wrong."""
        try:
            return self._part(plan) if self._again else self._run(plan)
        except Broken:
            raise
        except Exception as error:
            raise Violation("I4", f"a plan that cannot be run: {error!r}") from error

    def _run(self, plan: StepPlan) -> StepResult:
        watch, clock, setup = self._watch, self._clock, self._setup
        facts = self.facts()
        if self.trace is not None:
            self.trace.update(repr((clock.now_s, plan, facts)).encode())
        watch.planned(plan, facts, clock.now_s)
        if plan.copies:
            self._shadow.copy(plan.copies, setup.block_size)
        served, hungry = [0, 0, 0], [False, False, False]
        drawn: list[Drawn] = []
        running = watch.running
        for piece in plan.slices:
            life = running[piece.sequence_id]
            served[life.class_index] += len(piece.token_ids)
            if piece.draw is None:
                hungry[life.class_index] = True
            self._compute(life, piece, drawn)
        watch.counted(facts, served)
        num_free, is_evicting = self.num_free(), facts.num_preempted > 0
        watch.order.waits(served, hungry, num_free, running, clock.now_s, is_evicting=is_evicting)
        number = watch.num_steps
        is_broken = number in self._faults and bool(plan.slices)
        if is_broken:
            self._break(plan, number)
        self.meanwhile()
        cost_ms = setup.step_ms + setup.token_ms * sum(served)
        clock.now_s += cost_ms * (100 if number in self._jumps else 1) / 1e3
        if is_broken:
            watch.seen["faults"] += 1
            raise Broken(FAULT)
        return StepResult(tuple(drawn), 0.0, 0.0)

    def _compute(self, life: Life, piece: SequenceSlice, drawn: list[Drawn]) -> None:
        sequence_id, token_ids, start, block_ids, draw, *_ = piece
        own, stop = life.alone, start + len(token_ids)
        self._expect(life, piece, stop)
        if start:
            self._shadow.read(own.codes, piece, life.num_looks % LOOK_EVERY == 0)
        life.num_looks += 1
        life.num_blocks = len(block_ids)
        life.computed = stop
        life.step_tokens = stop - start
        if draw is None:
            self._shadow.write(own.codes, piece)
            return
        self._watch.due.append(life)
        if life.position == life.bad_at:
            drawn += self._bad(life, piece)
            return
        self._shadow.write(own.codes, piece)
        if draw.history or life.looks_back:
            history = own.known[:stop] if life.looks_back else []
            if list(draw.history) != history:
                raise Violation("I4", f"{life} looks back at {draw.history}")
        drawn.append(Drawn(sequence_id, next_token(own.codes[stop - 1], draw.seed, draw.position)))

    def _expect(self, life: Life, piece: SequenceSlice, stop: int) -> None:
        """A slice goes on where its sequence stands, with that sequence's tokens."""
        token_ids, start, known = piece.token_ids, piece.start, life.alone.known
        if start != life.computed:
            raise Violation("I4", f"{life} goes on at {start}")
        if stop - start == 1:
            same = token_ids[0] == known[start]
        else:
            same = bool(token_ids) and list(token_ids) == known[start:stop]
        if not same or stop > life.position:
            raise Violation("I4", f"{life} has other tokens than {token_ids} at {start}")
        if self._has_blocks and len(piece.block_ids) * self._setup.block_size < stop:
            raise Violation("I1", f"{life} has no block for position {stop - 1}")
        if (piece.draw is not None) is not (stop == life.position):
            raise Violation("I4", f"{life} computes up to {stop}, and its draw is {piece.draw}")

    def _bad(self, life: Life, piece: SequenceSlice) -> list[Drawn]:
        """It computes garbage, and no token comes of it."""
        self._shadow.write([GARBAGE] * life.computed, piece)
        life.fault = CAUSES[life.bad]
        if life.bad == "missing":
            return []
        error = FAULT if life.bad == "error" else None
        return [Drawn(piece.sequence_id, VOCAB, error=error)]

    def _break(self, plan: StepPlan, number: int) -> None:
        """A step that raises leaves garbage wherever it would have written. In one of three none
        of its sequences is at fault, in one all of them are."""
        self._watch.due = []
        running, ids = self._watch.running, [piece.sequence_id for piece in plan.slices]
        at_fault = ((), ids, [ids[number % len(ids)]])[number % 3]
        self._culprits = frozenset(at_fault)
        self._is_alone, self._num_parts = len(ids) == 1, 0
        self._again = {
            piece.sequence_id: (running[piece.sequence_id], piece) for piece in plan.slices
        }
        self._scribble(plan)

    def _part(self, plan: StepPlan) -> StepResult:
        """A part of a step that has failed: the same slices, as if nothing had been computed."""
        if self.trace is not None:
            self.trace.update(repr(plan).encode())
        self._num_parts += 1
        if plan.copies:
            self._shadow.copy(plan.copies, self._setup.block_size)
        is_broken = any(piece.sequence_id in self._culprits for piece in plan.slices)
        drawn: list[Drawn] = []
        for piece in plan.slices:
            life, planned = self._again[piece.sequence_id]
            if piece != planned:
                raise Violation("I4", f"{life} is to compute {piece} in place of {planned}")
            life.computed = piece.start
            if not is_broken:
                self._watch.seen["computed again"] += 1
                del self._again[piece.sequence_id]
                self._compute(life, piece, drawn)
                if life.ended and piece.draw is not None:  # aborted during the step
                    self._watch.due.remove(life)
        if is_broken:
            self._scribble(plan)
            if len(plan.slices) == 1:
                self._fail(self._again.pop(plan.slices[0].sequence_id)[0])
            raise Broken(FAULT)
        return StepResult(tuple(drawn), 0.0, 0.0)

    def _fail(self, life: Life) -> None:
        life.fault = FAULT
        if not life.ended:
            self._watch.due.append(life)

    def _scribble(self, plan: StepPlan) -> None:
        for piece in plan.slices:
            life, _ = self._again[piece.sequence_id]
            self._shadow.write([GARBAGE] * len(life.alone.codes), piece)
