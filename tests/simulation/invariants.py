"""What must hold of every step: an observer beside the engine that knows what each sequence is due.

Owns: `Watch`, and in it a `Life` per sequence. It sees plans, facts and events, and the clock.
May not know: the scheduler's own state; it counts for itself.
Read next: `order.py`, the invariants of whose turn it is; `world.py`, which calls all this.

The names are those of the violations:

I1   every block is in one state, and its count equals the tables that name it
I2   nothing writes a block that another has, or can find
I3   each accepted sequence ends exactly once, with its own end; nothing comes after it
I4   what it reads and what it is given is what it has alone: nothing foreign, lost, doubled
I5   the facts of a step are what happened in it
I6   first in line and overdue, it starts when those that run have ended, at the latest
I7   nobody is passed against the rules; an evicted one keeps its place; shares are achieved
I8   evictions per sequence, and tokens computed again, stay within their bounds
I9   the step's budget, the places and every table stay within their limits
I10  everything ends, within a number of steps known before, and then every block is free
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from firsthand.engine.facts import StepFacts
from firsthand.request import Finish, FinishReason, Request, TokenEvent
from firsthand.scheduling.facts import PlanFacts
from firsthand.scheduling.limits import max_stored_tokens
from firsthand.scheduling.plan import StepPlan
from firsthand.scheduling.policy import class_index
from tests.simulation.model import Violation, alone
from tests.simulation.order import Life, Order
from tests.simulation.workload import Ask, Setup


class Watch:
    """`accept` what the engine accepted; `planned` between plan and run; `stepped` after."""

    def __init__(self, setup: Setup, seen: Counter[str]) -> None:
        self._setup = setup
        self._limits = setup.limits
        self.seen = seen
        self.order = Order(setup, seen)
        self.lives: list[Life] = []
        self.open: dict[str, list[Life]] = {}  # by request
        self.running: dict[int, Life] = {}
        self.due: list[Life] = []  # whose events this step must bring, in order
        self._expired: list[Life] = []
        self._deadlines: list[tuple[float, int]] = []
        self._num_following = 0
        self.num_steps = 0
        self.most_steps = 0
        self.num_useful = self.num_recomputed = 0

    # ---- requests ------------------------------------------------------------------------------

    def accept(self, request: Request, ask: Ask, now_s: float) -> None:
        """The engine has taken a request."""
        max_stored = max_stored_tokens(request, self._limits)
        group: list[Life] = []
        for index, own in enumerate(alone(request, self._limits.context_length)):
            life = Life(len(self.lives), index, request, own, now_s, max_stored)
            life.class_index = class_index(request.priority)
            if ask.bad is not None and ask.bad.index == index:
                life.bad_at = len(request.prompt_token_ids) + ask.bad.after
                life.bad = ask.bad.what
            group.append(life)
            self.lives.append(life)
            if request.deadline_s is not None:
                heapq.heappush(self._deadlines, (request.deadline_s, life.sequence_id))
            rounds = 1 + self._setup.policy.max_preemptions
            self.most_steps += 1 + rounds * max_stored
        self.open[request.request_id] = group
        if self._setup.kind in ("shared", "static-shared"):
            group[0].followers = group[1:]
            self._num_following += len(group) - 1
            group = group[:1]
        for life in group:
            self.order.queue(life)

    def aborted(self, request_id: str, index: int | None, events: list[TokenEvent]) -> None:
        """An abort ends what is open, with an event for each, and nothing else."""
        lives = [
            life
            for life in self.open.get(request_id, ())
            if not life.expired and index in (None, life.index)
        ]
        if [(event.request_id, event.index) for event in events] != [
            (life.request.request_id, life.index) for life in lives
        ]:
            raise Violation("I3", f"abort of {request_id} {index} gave {events}")
        for life, event in zip(lives, events, strict=True):
            if event.finish is None or event.finish.reason is not FinishReason.CANCELLED:
                raise Violation("I3", f"an abort that does not end: {event}")
            self.seen[f"abort {self._state(life)}"] += 1
            if life in self.due:
                self.due.remove(life)
            self._end(life)

    # ---- steps ---------------------------------------------------------------------------------

    def planned(self, plan: StepPlan, facts: PlanFacts, now_s: float) -> None:
        """Before anything is computed: who is in the plan, and who is not."""
        self._expire(now_s)
        running = self.running
        num_gone = num_come = 0
        if facts.num_preempted or facts.admitted or len(plan.slices) != len(running):
            in_plan = {piece.sequence_id for piece in plan.slices}
            evicted = [life for key, life in running.items() if key not in in_plan]
            num_gone, num_come = len(evicted), len(facts.admitted)
            if num_gone != facts.num_preempted:
                raise Violation("I5", f"{num_gone} vanished, {facts.num_preempted} evictions told")
            self._evicted(evicted)
            come = self._admitted(facts, now_s)
            if in_plan != running.keys():
                raise Violation("I3", "the plan and those that run are not the same")
            self.order.admitted(come, evicted, running, now_s)
        if len(running) > self._limits.max_sequences:
            raise Violation("I9", f"{len(running)} run")
        self.num_recomputed += facts.num_recomputed
        self.seen["preempted"] += num_gone
        self.seen["admitted"] += num_come
        self.seen["copies"] += len(plan.copies)

    def counted(self, facts: PlanFacts, served: list[int]) -> None:
        """`served` tokens by class are in the plan."""
        num_tokens = sum(served)
        if tuple(served) != facts.served_by_class:
            raise Violation("I5", f"served {served}, told {facts.served_by_class}")
        if num_tokens > self._limits.max_step_tokens:
            raise Violation("I9", f"{num_tokens} tokens in a step")
        self.num_useful += num_tokens - facts.num_recomputed

    def stepped(self, facts: StepFacts, events: list[TokenEvent], now_s: float) -> None:
        """The events of a step are exactly those that are due, in their order."""
        num_expired = len(self._expired)
        if len(events) != num_expired + len(self.due):
            raise Violation("I3", f"{len(events)} events, {num_expired} + {len(self.due)} are due")
        if num_expired:
            self._take_expired(events[:num_expired])
        num_drawn = num_ended = 0
        for life, event in zip(self.due, events[num_expired:], strict=True):
            if event.request_id != life.request.request_id or event.index != life.index:
                raise Violation("I4", f"an event of {life} is told as {event}")
            if event.at_s != now_s:
                raise Violation("I5", f"at {now_s} an event of {event.at_s}")
            num_drawn += event.token_id is not None
            num_ended += event.finish is not None
            self._take(life, event)
        self.due = []
        self.num_steps += 1
        if (facts.num_drawn, facts.num_finished) != (num_drawn, num_expired + num_ended):
            raise Violation("I5", f"{num_drawn} drawn, {num_ended} ended, but {facts}")
        waiting = self.order.num_queued + self._num_following
        if (facts.num_waiting, facts.num_running) != (waiting, len(self.running)):
            raise Violation("I5", f"{waiting} wait, {len(self.running)} run, but {facts}")
        if self.num_steps > self.most_steps:
            raise Violation("I10", f"not ended after {self.num_steps} steps")

    def ended(self, num_used_blocks: int) -> None:
        """The engine says that it has no work."""
        left = [life for group in self.open.values() for life in group]
        if left:
            raise Violation("I3", f"never ended: {left[:3]}")
        if num_used_blocks:
            raise Violation("I10", f"{num_used_blocks} blocks are never given back")
        setup = self._setup
        slack = setup.max_sequences * setup.context * 3
        is_bounded = setup.policy.max_recomputed <= 0.05
        if is_bounded and self.num_recomputed > 0.25 * self.num_useful + slack:
            raise Violation("I8", f"{self.num_recomputed} recomputed of {self.num_useful}")
        self.order.shares_achieved()

    # ---- parts ---------------------------------------------------------------------------------

    def _expire(self, now_s: float) -> None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_s:
            life = self.lives[heapq.heappop(deadlines)[1]]
            if life.ended:
                continue
            self.seen[f"deadline {self._state(life)}"] += 1
            life.expired = True
            self._expired.append(life)
            self._leave(life)

    def _take_expired(self, events: list[TokenEvent]) -> None:
        told = {(event.request_id, event.index) for event in events}
        if told != {(life.request.request_id, life.index) for life in self._expired}:
            raise Violation("I3", f"{self._expired} are past their deadlines, told: {told}")
        for event in events:
            if event.finish is None or event.finish.reason is not FinishReason.DEADLINE:
                raise Violation("I3", f"past its deadline, but {event}")
        for life in self._expired:
            self._end(life)
        self._expired = []

    def _evicted(self, evicted: list[Life]) -> None:
        for life in evicted:
            del self.running[life.sequence_id]
            life.num_preemptions += 1
            life.lost, life.computed = life.computed, 0
            if life.num_preemptions > self._setup.policy.max_preemptions:
                raise Violation("I8", f"{life} was evicted {life.num_preemptions} times")
            self.order.queue(life)

    def _admitted(self, facts: PlanFacts, now_s: float) -> list[Life]:
        come: list[Life] = []
        num_again = 0
        for told in facts.admitted:
            life = self._find(told.request_id, told.index)
            if not life.queued:
                raise Violation("I3", f"{life} is admitted, but did not wait")
            if told.waited_s != now_s - life.arrival_s or told.resumed != bool(
                life.num_preemptions
            ):
                raise Violation("I5", f"{life} waited since {life.arrival_s}, told {told}")
            life.computed = told.num_cached_tokens
            num_again += max(0, life.lost - life.computed)
            life.lost = 0
            life.num_looks = 0
            self.seen["hits"] += told.num_cached_tokens > 0
            self.order.unqueue(life)
            self.running[life.sequence_id] = life
            self.order.num_admitted += 1
            life.admitted = self.order.num_admitted
            come.append(life)
        if num_again != facts.num_recomputed:
            raise Violation("I5", f"{num_again} tokens are computed again, told {facts}")
        return come

    def _take(self, life: Life, event: TokenEvent) -> None:
        """One event of one sequence: its token, or the error that it must end with."""
        finish, own = event.finish, life.alone
        if life.fault is not None:
            if event.token_id is not None or finish is None:
                raise Violation("I3", f"{life} failed, but {event}")
            if finish.reason is not FinishReason.ERROR or life.fault not in str(finish.cause):
                raise Violation("I3", f"{life} failed with {life.fault}, but {event}")
            self.seen["error"] += 1
            self._end(life)
            return
        if event.token_id != own.known[life.position]:
            raise Violation("I4", f"{life} has {own.known[life.position]} alone, not {event}")
        life.position += 1
        if life.followers:
            self._release(life)
        due = own.finish if life.position == len(own.known) else None
        if due is not None and life.request.is_late(event.at_s):
            due = Finish(FinishReason.DEADLINE)
        if finish != due:
            raise Violation("I3", f"{life} ends with {due}, not {event}")
        if finish is not None:
            self.seen[finish.reason.value] += 1
            self._end(life)

    def _end(self, life: Life) -> None:
        if life.ended:
            raise Violation("I3", f"{life} ends twice")
        if not life.expired:
            self._leave(life)
        life.ended = True
        group = self.open[life.request.request_id]
        group.remove(life)
        if not group:
            del self.open[life.request.request_id]

    def _leave(self, life: Life) -> None:
        """It neither runs nor waits any more."""
        if life.followers:
            self._release(life)
        if life.queued:
            self.order.unqueue(life)
        elif life.sequence_id in self.running:
            del self.running[life.sequence_id]
        else:
            self._num_following -= 1
            leader = next(one for one in self.open[life.request.request_id] if one.followers)
            leader.followers.remove(life)

    def _release(self, leader: Life) -> None:
        for life in leader.followers:
            self._num_following -= 1
            life.released = True
            self.order.queue(life)
        leader.followers = []

    def _find(self, request_id: str, index: int) -> Life:
        for life in self.open.get(request_id, ()):
            if life.index == index:
                return life
        raise Violation("I3", f"{request_id} {index} is not open")

    def _state(self, life: Life) -> str:
        """Where a sequence is, for the count of what was seen."""
        rules: tuple[tuple[str, Callable[[], bool]], ...] = (
            ("evicted", lambda: life.queued and life.num_preemptions > 0),
            ("waiting", lambda: life.queued),
            ("following", lambda: life.sequence_id not in self.running),
            ("reading its prompt", lambda: life.position == len(life.request.prompt_token_ids)),
        )
        return next((name for name, holds in rules if holds()), "writing")
